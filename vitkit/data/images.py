"""Labelled pictures as batches for the Trainer. Letters: B batch, C channels, H W the model's image size in pixels."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng
from PIL import Image
from torch import Tensor, distributed
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms.v2 import Transform

from vitkit.data.order import Pick, TrainingOrder, ValidationOrder, derive, split
from vitkit.data.sources import Source, open_source
from vitkit.preprocess import Preprocess


class Batch(NamedTuple):
    """`indices` say where in the source each picture is."""

    images: Float[Tensor, "B C H W"]
    labels: Int64[Tensor, " B"]
    indices: Int64[Tensor, " B"]


class Images(LightningDataModule):
    """Pictures with one label each, split into training and validation.

    Args:
        train, val: what `open_source` understands. Without val, fold `fold` of `folds` is held out.
        size, mean, std, interpolation, crop: see Preprocess.
        batch: pictures a step and rank.
        augment: torchvision transforms of the picture, before it is resized; one that yields `size` has the last word.
        seed: of the order and the augmentation, not of the split.

    Raises: ValueError, one line, as soon as it is made.
    """

    def __init__(
        self,
        train: str,
        val: str | None = None,
        *,
        size: tuple[int, int],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        interpolation: str = "bicubic",
        crop: float = 1.0,
        batch: int = 64,
        folds: int = 5,
        fold: int = 0,
        augment: Sequence[Transform] = (),
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch < 1 or workers < 0:
            raise ValueError(f"batch must be at least 1 and workers at least 0, got batch={batch}, workers={workers}")
        self.preprocess = Preprocess(size, mean, std, interpolation, crop)
        self.source = self.held_out = open_source(train)
        if val is None:
            self.training, self.validation = split(self.source.labels, self.source.classes, folds, fold)
        else:
            self.held_out = open_source(val)
            _check_classes(self.source, self.held_out)
            self.training, self.validation = list(range(len(self.source))), list(range(len(self.held_out)))
        self.fold = fold
        self.batch = batch
        self.augment = augment
        self.workers = workers
        self.seed = seed

    @property
    def names(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def classes(self) -> int:
        return len(self.names)

    @property
    def size(self) -> tuple[int, int]:
        return self.preprocess.size

    @property
    def channels(self) -> int:
        return self.preprocess.channels

    def train_dataloader(self) -> DataLoader[Batch]:
        rank, world = _place()
        order = TrainingOrder(self.training, self.batch, self.seed, rank=rank, world=world, done=self._trained())
        if len(order) == 0:
            raise ValueError(f"train must hold a picture for each rank, got {len(self.training)}, world={world}")
        if order.dropped:
            rank_zero_info(f"{order.dropped} of {len(self.training)} pictures an epoch are left out: fewer than ranks")
        pictures = Pictures(self.source, self.preprocess, self.augment, self.seed)
        identity = {"pictures": len(self.training), "fold": self.fold, "batch": self.batch * world, "seed": self.seed}
        return Loader(pictures, order, self.workers, identity)

    def val_dataloader(self) -> DataLoader[Batch]:
        rank, world = _place()
        if len(self.validation) < world:  # Lightning would skip the empty rank, and the others wait for it
            raise ValueError(f"val must hold a picture for each rank, got {len(self.validation)}, world={world}")
        order = ValidationOrder(self.validation, self.batch, rank=rank, world=world)
        return Loader(Pictures(self.held_out, self.preprocess, (), self.seed), order, self.workers, {})

    def _trained(self) -> Pick:
        """The (epoch, batches) trained, not fetched: Lightning's count, restored before it asks for loaders."""
        if self.trainer is None:
            return 0, 0
        epochs = self.trainer.fit_loop.epoch_progress.state_dict()["current"]
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.state_dict()
        batches = progress["current"]
        if epochs["started"] == epochs["processed"]:
            return epochs["processed"], 0
        if progress["is_last_batch"] and batches["ready"] == batches["processed"]:
            return epochs["processed"] + 1, 0
        return epochs["processed"], batches["processed"]


class Pictures(Dataset[Batch]):
    """From picks to a batch: each picture, varied under a seed of its own, as the numbers that the model reads."""

    def __init__(self, source: Source, preprocess: Preprocess, augment: Sequence[Transform], seed: int) -> None:
        self.source = source
        self.preprocess = preprocess
        self.augment = augment
        self.seed = seed

    def __getitem__(self, picks: list[Pick]) -> Batch:
        # Without workers this is the training process, whose generators must not notice.
        with isolate_rng(include_cuda=False):
            pixels = self.preprocess.pixels([self.image(epoch, index) for epoch, index in picks])
        indices = [index for _, index in picks]
        labels = torch.tensor([self.source.labels[index] for index in indices])
        return Batch(self.preprocess.normalise(pixels), labels, torch.tensor(indices))

    def image(self, epoch: int, index: int) -> Image.Image:
        image = self.preprocess.convert(self.source.picture(index))
        if self.augment:
            image = self.varied(image, derive(self.seed, epoch, index))
            if image.size == self.preprocess.size[::-1]:
                return image
        return self.preprocess.resize(image)

    def varied(self, image: Image.Image, seed: int) -> Image.Image:
        # torch.manual_seed would also seed the accelerators, and takes 210 us where this takes 1.
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  (transforms that draw from NumPy draw from its global generator)
        for transform in self.augment:
            image = transform(image)
        if not isinstance(image, Image.Image):
            raise ValueError(f"augment must yield pictures, got {type(image).__name__}; leave tensors to Images")
        return self.preprocess.convert(image)


class Loader(DataLoader[Batch]):
    """A DataLoader in an exact order, which Lightning may therefore resume in mid-epoch.

    Args: identity: what the order depends on; a checkpoint holds it, and another one is refused.
    """

    def __init__(self, pictures: Pictures, order: Sampler[list[Pick]], workers: int, identity: dict[str, int]) -> None:
        super().__init__(
            pictures,
            sampler=order,
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
            # Its own, so that starting an epoch draws nothing from the generator behind dropout.
            generator=torch.Generator(),
        )
        self.identity = identity

    def state_dict(self) -> dict[str, int]:
        return self.identity

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state != self.identity:
            raise ValueError(f"a run must go on in mid-epoch with the same data, got {self.identity}, was {state}")


def _place() -> tuple[int, int]:
    """(rank, world)"""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _check_classes(train: Source, val: Source) -> None:
    if train.classes != val.classes:
        only = [sorted(set(one.classes) - set(other.classes)) for one, other in ((train, val), (val, train))]
        raise ValueError(f"train and val must have equal classes, got only in train {only[0]}, only in val {only[1]}")
