"""Several views of each image for self-supervised training. Letters: B batch, C channels, K classes, h w a view's size.

Multi-crop: https://arxiv.org/abs/2006.09882, section 3.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.data.image_data import ImageData
from vitkit.data.images import open_split, refuse_balanced
from vitkit.data.order import Draw, Pick
from vitkit.data.pictures import Augmentation, ImageReading, Pictures, preserve_generators, stack_labels
from vitkit.data.preprocess import Preprocess


@dataclass(frozen=True)
class View:
    """The size and the augmentation of a view of an image.

    Args:
        size: (h, w) in pixels.
        augment: see Images.
        count: the number of such views, each under a seed of its own.
    """

    size: tuple[int, int]
    augment: Augmentation = Augmentation()
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got count={self.count}")


class ViewBatch(NamedTuple):
    """Views of images, in the order of the settings, each of its own size. The rest as in Batch."""

    views: tuple[Float[Tensor, "B C _h _w"], ...]
    labels: Int64[Tensor, " B"] | Bool[Tensor, "B K"]
    indices: Int64[Tensor, " B"]
    skipped: tuple[str, ...] = ()
    digests: Mapping[int, int] = {}


class MultiViewPictures(Dataset[ViewBatch]):
    """Several views of each image, which is read once. The first equals the image of `Pictures` alone.

    A view depends on the seed, the epoch, the sample and its place among the views, not on the settings of the others.

    Args: views: of one source and one preprocessing but for the size.
    """

    def __init__(self, views: Sequence[Pictures]) -> None:
        self.views = views

    def __getitem__(self, picks: Sequence[Pick]) -> ViewBatch:
        crops: list[list[tuple[Pick, Image.Image]]] = [[] for _ in self.views]
        skipped: list[str] = []
        digests: dict[int, int] = {}
        first = self.views[0]
        with preserve_generators():
            for pick, image in first.read_images(picks, skipped, digests):
                for place, view in enumerate(self.views):
                    crops[place].append((pick, view.crop(image, pick, place)))
            images = tuple(view.normalise_crops(crops[place], place) for place, view in enumerate(self.views))
        indices = [pick.sample for pick, _ in crops[0]]
        labels = stack_labels(first.source, indices)
        return ViewBatch(images, labels, torch.tensor(indices, dtype=torch.int64), tuple(skipped), digests)


class Views(ImageData):
    """Images, split into training and validation, with several views of each training image.

    Validation images are those of Images.

    Args:
        preprocess: of validation images; views are normalised by it too, and resized if no augmentation returns
            their size.
        views: size and augmentation of the views, in the order of a batch.
        train, val, batch, folds, fold, draw, workers, seed, reading, unlabelled: see Images.

    Raises: ValueError, one line, as soon as it is made.
    """

    fields = ViewBatch._fields

    def __init__(
        self,
        train: str,
        val: str | None = None,
        *,
        preprocess: Preprocess,
        views: Sequence[View],
        batch: int = 64,
        folds: int = 5,
        fold: int = 0,
        draw: Draw | None = None,
        workers: int = 0,
        seed: int = 0,
        reading: ImageReading = ImageReading(),
        unlabelled: bool = False,
    ) -> None:
        refuse_balanced(draw, unlabelled)
        if not views:
            raise ValueError("views must hold a View, got none")
        split = open_split(train, val, reading, folds, fold, unlabelled)
        self.training_views = [
            Pictures(
                split.source,
                replace(preprocess, size=view.size),
                augment=view.augment,
                seed=seed,
                reading=reading,
            )
            for view in views
            for _ in range(view.count)
        ]
        super().__init__(
            preprocess,
            *split,
            training_samples=MultiViewPictures(self.training_views),
            reading=reading,
            augmented=self.training_views,
            batch=batch,
            fold=fold,
            draw=draw,
            workers=workers,
            seed=seed,
        )
