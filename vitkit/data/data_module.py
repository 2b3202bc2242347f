"""What all kinds of samples share as a DataModule: batches in an exact order, shared out over ranks, and resumed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import distributed
from torch.utils.data import Dataset

from vitkit.data.order import Draw, Labels, Shuffled, TrainingOrder, ValidationOrder
from vitkit.data.pictures import Loader, Pictures
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Source


class Data(LightningDataModule, ABC):
    """Samples of a source, split into training and validation.

    Args:
        preprocess: of all pictures.
        source, held_out: where training and validation pictures are; the same one where it is split.
        training, validation: samples of these.
        training_samples: what reads a batch of the former. validation_pictures: of the latter, never varied.
        fold: which part of the source was held out.
        batch: samples a step and rank.
        draw: which of them an epoch holds.
        seed: of the order.
        reading: how `Pictures` reads.
    """

    unit = "pictures"  # how a line of text calls its samples

    def __init__(
        self,
        preprocess: Preprocess,
        source: Source,
        held_out: Source,
        training: list[int],
        validation: list[int],
        *,
        training_samples: Dataset[Any],
        fold: int,
        batch: int,
        draw: Draw | None,
        workers: int,
        seed: int,
        reading: dict[str, Any],
    ) -> None:
        super().__init__()
        if batch < 1 or workers < 0:
            raise ValueError(f"batch must be at least 1 and workers at least 0, got batch={batch}, workers={workers}")
        self.preprocess = preprocess
        self.source, self.held_out = source, held_out
        self.training, self.validation = training, validation
        self.training_samples = training_samples
        self.validation_pictures = Pictures(held_out, preprocess, **reading)
        self.fold, self.batch, self.draw, self.workers, self.seed = fold, batch, draw, workers, seed
        self.reading = reading

    @property
    @abstractmethod
    def marks(self) -> Labels:
        """Of each training sample, what a draw goes by: its label, its concept."""

    def stop_augmentation(self) -> None:
        """Read training samples as they are from now on; nothing varies those of other data."""

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

    @property
    def one_label(self) -> bool:
        """Whether every picture has exactly one."""
        return self.classes > 0 and not self.source.several

    def drawing(self) -> Draw:
        """What an epoch holds, in which order, among these ranks."""
        return self.draw or Shuffled()

    def train_dataloader(self) -> Loader:
        rank, world = place()
        order = TrainingOrder(
            self.training,
            self.batch,
            self.seed,
            labels=self.marks,
            draw=self.drawing(),
            rank=rank,
            world=world,
            done=self._trained(),
        )
        if len(order) == 0:
            raise ValueError(f"train must hold a picture for each rank, got {len(self.training)}, world={world}")
        if order.dropped:
            rank_zero_info(f"{order.dropped} of {len(self.training)} pictures an epoch are left out: fewer than ranks")
        identity = {"pictures": len(self.training), "fold": self.fold, "batch": self.batch * world, "seed": self.seed}
        return Loader(self.training_samples, order, self.workers, identity)

    def val_dataloader(self) -> Loader:
        rank, world = place()
        if len(self.validation) < world:  # Lightning would skip the empty rank, and the others wait for it
            raise ValueError(f"val must hold a picture for each rank, got {len(self.validation)}, world={world}")
        order = ValidationOrder(self.validation, self.batch, rank=rank, world=world)
        return Loader(self.validation_pictures, order, self.workers)

    def unvaried_dataloader(self, samples: Sequence[int]) -> Loader:
        """These of the training pictures, as validation would read them; each rank has its share."""
        rank, world = place()
        pictures = Pictures(self.source, self.preprocess, **self.reading)
        return Loader(pictures, ValidationOrder(samples, self.batch, rank=rank, world=world), self.workers)

    def _trained(self) -> tuple[int, int]:
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


def place() -> tuple[int, int]:
    """(rank, world)"""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
