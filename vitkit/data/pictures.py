"""Batches of read, augmented and normalised images. Letters: B batch, C channels, K classes, h w image size."""

import math
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vitkit.data.order import Pick, derive_seed
from vitkit.data.preprocess import PictureError, Preprocess
from vitkit.data.sources.source import Source

if TYPE_CHECKING:  # it takes seconds to import, and predictions need no augmentation
    from torchvision.transforms.v2 import Transform

RAISE, SKIP = "raise", "skip"
Item = TypeVar("Item")


class Batch(NamedTuple):
    """Images with one label each, or with a set of labels each.

    `indices` are the images' indices in the source; `skipped` has a message for each image that could not be read and
    is left out of the batch. `digests` has a hash of the content of images that are read for the first time; `tiny` are
    the indices of images below `Preprocess.least_size`.
    """

    images: Float[Tensor, "B C h w"]
    labels: Int64[Tensor, " B"] | Bool[Tensor, "B K"]
    indices: Int64[Tensor, " B"]
    skipped: tuple[str, ...] = ()
    digests: Mapping[int, int] = {}
    tiny: tuple[int, ...] = ()


@dataclass(frozen=True)
class Augmentation:
    """Transforms of training images, drawn anew each time that an image is read.

    Args:
        images: of the image, before it is resized. If they return the model's size, it is not resized again.
        tensors: of the normalised tensor (C, h, w), last.
    """

    images: Sequence["Transform"] = ()
    tensors: Sequence["Transform"] = ()


@dataclass(frozen=True)
class ImageReading:
    """Options for reading the images of a source.

    Args:
        columns: the columns of a table or a data set that hold the image and its annotation, see `open_source`.
        exclude: patterns of files and folders to leave out, see `open_source`.
        reduce: if not None, JPEGs are decoded at 1/2, 1/4 or 1/8 while both sides stay at least `reduce` times the
            model's image size; 2 is safe for crops of at least half a side. At 224 from 12 megapixels values move by
            1.4 to 2.3 levels of 255 on average for 1, 0.2 to 0.5 for 2, 0.2 for 4 (at most 22, 6 and 4 in photographs;
            at sharp, saturated edges up to 39).
        on_error: "raise" stops at the first image that cannot be read; "skip" leaves such images out, and lists them
            at the end; rows of a table whose file does not exist count as such.
    """

    columns: tuple[str, ...] | None = None
    exclude: str | Sequence[str] = ()
    reduce: float | None = None
    on_error: str = RAISE

    def __post_init__(self) -> None:
        if self.on_error not in (RAISE, SKIP):
            raise ValueError(f"on_error must be {RAISE} or {SKIP}, got on_error={self.on_error}")
        if self.reduce is not None and not 1 <= self.reduce < math.inf:
            raise ValueError(f"reduce must be at least 1, or no picture would be sharp, got reduce={self.reduce}")

    @property
    def skip_absent(self) -> bool:
        return self.on_error == SKIP


class Pictures(Dataset[Batch]):
    """The images of a source, each augmented under a seed of its own."""

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        *,
        augment: Augmentation = Augmentation(),
        seed: int = 0,
        reading: ImageReading = ImageReading(),
    ) -> None:
        self.source = source
        self.preprocess = preprocess
        self.augment = augment
        self.seed = seed
        height, width = (round(side * (reading.reduce or 0) / preprocess.crop) for side in preprocess.size)
        self.at_least = None if reading.reduce is None else (height, width)
        self.on_error = reading.on_error
        self.unread: Bool[Tensor, " N"] | None = None  # samples whose digests are wanted, shared with workers

    def request_digests(self) -> None:
        """Return the digest of each image with its batch until `unread` is False for it."""
        self.unread = torch.ones(len(self.source), dtype=torch.bool).share_memory_()

    def confirm_digests(self, samples: Iterable[int]) -> None:
        if self.unread is not None:
            self.unread[list(samples)] = False

    def __getitem__(self, picks: Sequence[Pick]) -> Batch:
        skipped: list[str] = []
        digests: dict[int, int] = {}
        crops: list[tuple[Pick, Image.Image]] = []
        tiny: list[int] = []
        # Without workers this runs in the training process, whose generators must not change.
        with preserve_generators():
            for pick, image in self.read_images(picks, skipped, digests):
                crops.append((pick, self.crop(image, pick)))
                tiny += [pick.sample] if self.preprocess.is_tiny(image) else []
            images = self.normalise_crops(crops)
        indices = [pick.sample for pick, _ in crops]
        labels = stack_labels(self.source, indices)
        return Batch(images, labels, torch.tensor(indices, dtype=torch.int64), tuple(skipped), digests, tuple(tiny))

    def read_images(
        self, picks: Sequence[Pick], skipped: list[str], digests: dict[int, int]
    ) -> Iterator[tuple[Pick, Image.Image]]:
        """Yield the images that can be read, and add their digests if they are wanted; append a line to `skipped` for
        each of the others."""
        for pick in picks:
            try:
                image = self.preprocess.convert(self.source.read_image(pick.sample, self.at_least))
                if self.unread is not None and self.unread[pick.sample]:
                    digests[pick.sample] = self.source.compute_digest(pick.sample)
            except PictureError as error:
                if self.on_error == RAISE:
                    raise PictureError(f"{error}; or leave such pictures out: reading.on_error=skip") from error
                skipped.append(str(error))
            else:
                yield pick, image

    def crop(self, image: Image.Image, pick: Pick, view: int = 0) -> Image.Image:
        """Augment an image and resize it. Args: view: the index of the view, if an image has several."""
        if self.augment.images:
            # The first copy and the first view have the seed that they would have without others.
            numbers = (*pick, 0, view) if view else pick[: 3 if pick.copy else 2]
            image = self.augment_image(image, derive_seed(self.seed, *numbers))
            if image.size == self.preprocess.size[::-1]:
                return image
        return self.preprocess.resize(image)

    def augment_image(self, image: Image.Image, seed: int) -> Image.Image:
        seed_generators(seed)
        for transform in self.augment.images:
            image = transform(image)
        if not isinstance(image, Image.Image):
            raise ValueError(f"augment.images must yield pictures, got {type(image).__name__}; see augment.tensors")
        return self.preprocess.convert(image)

    def normalise_crops(self, crops: Sequence[tuple[Pick, Image.Image]], view: int = 0) -> Float[Tensor, "B C h w"]:
        """Normalise the images that `crop` returned, and augment the tensors."""
        if not crops:
            return torch.zeros(0, self.preprocess.channels, *self.preprocess.size)
        images = self.preprocess.normalise(self.preprocess.stack_pixels([image for _, image in crops]))
        if self.augment.tensors:
            for row, (pick, _) in enumerate(crops):
                seed_generators(derive_seed(self.seed, *pick, 1, *([view] if view else [])))
                for transform in self.augment.tensors:
                    images[row] = transform(images[row])
        return images


def stack_labels(source: Source, indices: Sequence[int]) -> Int64[Tensor, " B"] | Bool[Tensor, "B K"]:
    labels = [source.labels[index] for index in indices]
    if not source.multilabel:
        return torch.tensor(labels, dtype=torch.int64)
    sets = torch.zeros(len(labels), len(source.class_names), dtype=torch.bool)
    for row, label in zip(sets, labels, strict=True):
        row[list(label) if isinstance(label, tuple) else label] = True
    return sets


def seed_generators(seed: int) -> None:
    # torch.manual_seed would also seed the accelerators, and takes 210 us where this takes 1.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (transforms that draw from NumPy draw from its global generator)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the states of the global generators on exit."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002


def draw_under_seeds(seeds: Sequence[int], draw: Callable[[], Tensor]) -> Tensor:
    """Concatenate the results of `draw` under each seed. The states of the global generators are restored."""
    draws: list[Tensor] = []
    with preserve_generators():
        for seed in seeds:
            seed_generators(seed)
            draws.append(draw())
    return torch.cat(draws)


def prepare_worker(_worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one decides when to stop
    # Pillow asks the system anew for the memory of each picture, which takes 30 ms of the 80 for 12 megapixels in JPEG.
    Image.core.set_blocks_max(8)  # of 16 MB


class Loader(DataLoader[Any]):
    """A DataLoader in an exact order, which Lightning may therefore resume in mid-epoch.

    Args: identity: the numbers that the order depends on; a checkpoint with others is refused if `checked`.
    """

    def __init__(
        self,
        pictures: Dataset[Any],
        order: Sampler[list[Pick]],
        workers: int = 0,
        identity: Mapping[str, int | str] | None = None,
        *,
        checked: bool = True,
    ) -> None:
        super().__init__(
            pictures,
            sampler=order,
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=prepare_worker,
            pin_memory=torch.cuda.is_available(),
            # Its own, so that starting an epoch draws nothing from the generator behind dropout.
            generator=torch.Generator(),
        )
        self.identity, self.checked = dict(identity or {}), checked

    def state_dict(self) -> dict[str, int | str]:
        return self.identity

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        if self.checked and state != self.identity:
            raise ValueError(
                f"a run must go on with the same data and batch, got {self.identity}, was {state}; between two epochs "
                "fit --resume_with_changes takes another batch"
            )


def iterate_loader(loader: Iterable[Item]) -> Iterator[Item]:
    """Yield the batches of a loader. Raises: ValueError if a worker dies, for want of memory or in a decoder."""
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ValueError(f"a worker stopped ({error}); lower batch, or find the picture with workers=0") from error
