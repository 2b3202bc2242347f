"""The DataModule of all kinds of samples: batches in an exact order, divided among ranks, that can be resumed."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import distributed
from torch.utils.data import Dataset

from vitkit.data.omissions import Omissions
from vitkit.data.order import Draw, Labels, Shuffled, TrainingOrder, ValidationOrder
from vitkit.data.pictures import Loader
from vitkit.data.preprocess import Preprocess
from vitkit.data.sample_record import SampleLog, SampleRecord
from vitkit.data.tokenizer import Tokenizer


class Data(LightningDataModule, ABC):
    """Samples of any kind, split into training and validation. A subclass names and compares them.

    A batch has `indices`, its samples, and `skipped`, a line for each sample that could not be read. `log` is the
    record of a run's samples, None where none is made.

    Args:
        training, validation: the samples, as indices into what holds them.
        training_samples: a dataset that returns a batch for a list of picks.
        validation_samples: the same for validation, never augmented.
        batch: samples a step and rank.
        fold: the part of the samples that is held out.
        draw: the choice and order of an epoch's samples.
        seed: of the order.
    """

    unit: ClassVar[str]  # the plural that reports call the samples by: "pictures", "texts"
    item: ClassVar[str] = ""  # that of what batches hold, if these are pieces of samples: "windows"

    def __init__(
        self,
        training: list[int],
        validation: list[int],
        *,
        training_samples: Dataset[Any],
        validation_samples: Dataset[Any],
        batch: int,
        fold: int = 0,
        draw: Draw | None = None,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch < 1 or workers < 0:
            raise ValueError(f"batch must be at least 1 and workers at least 0, got batch={batch}, workers={workers}")
        self.training, self.validation = training, validation
        self.training_samples, self.validation_samples = training_samples, validation_samples
        self.fold, self.batch, self.draw, self.workers, self.seed = fold, batch, draw, workers, seed
        self.log: SampleLog | None = None

    @property
    def preprocess(self) -> Preprocess | None:
        """The preprocessing of images, None where there are none."""
        return None

    @property
    def trained_validation(self) -> int:
        """The number of validation samples that were trained on, as far as `log` knows their contents."""
        return 0 if self.log is None else self.log.count_shared()

    @property
    def validation_title(self) -> str:
        """The name of the validation set in reports, which says if it was trained on."""
        count, total = self.trained_validation, len(self.validation)
        if count == total:
            return f"{self.unit} that were trained on (nothing is held out)"
        return f"the validation set{f' ({count:,} of {total:,} were trained on)' if count else ''}"

    @property
    def omissions(self) -> Omissions:
        """The counts of files and samples that were left out when the sources were listed."""
        return Omissions()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of texts, None where there are none."""
        return None

    def stop_augmentation(self) -> None:
        """Read training samples without augmentation from now on. By default there is none."""

    @property
    def training_items(self) -> Sequence[int]:
        """The items that the batches of an epoch hold: the training samples, or numbers of pieces of them."""
        return self.training

    @property
    def validation_items(self) -> Sequence[int]:
        """The items that the batches of a validation hold."""
        return self.validation

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, empty where samples have none."""
        return ()

    @property
    def multilabel(self) -> bool:
        """True if a sample may have several labels."""
        return False

    @property
    def training_labels(self) -> Labels:
        """The label of each training sample for a draw; the positives of images with captions; -1 for none."""
        return [-1] * len(self.training)

    @abstractmethod
    def name_sample(self, sample: int) -> str:
        """Return the name of a training sample in messages."""

    def name_validation_sample(self, sample: int) -> str:
        """Return the name of a validation sample in messages."""
        return self.name_sample(sample)

    @abstractmethod
    def find_duplicates(self) -> list[tuple[int, int]]:
        """Return pairs (training sample, validation sample) of equal content, one for each such validation sample."""

    def start_log(self, record: SampleRecord) -> None:
        """Make `log`, and keep the samples of a record on their side. By default there is none.

        Args: record: of the run so far, empty for a new one; its folds and fold are those of this run.
        """

    def confirm_digests(self, samples: Iterable[int], held_out: bool) -> None:
        """Stop computing digests of training or validation samples that are in the record."""

    def get_draw(self) -> Draw:
        """Return the draw of an epoch, for the batches of all ranks together."""
        return (self.draw or Shuffled()).fit_batch(self.batch * get_rank_and_world()[1])

    def count_batches(self, world: int) -> int:
        """Return the number of training batches of an epoch on each of so many ranks."""
        return len(TrainingOrder(self.training_items, self.batch, self.seed, world=world))

    def train_dataloader(self) -> Loader:
        rank, world = get_rank_and_world()
        items, unit = self.training_items, self.item or self.unit
        order = TrainingOrder(
            items,
            self.batch,
            self.seed,
            labels=self.training_labels,
            draw=self.get_draw(),
            rank=rank,
            world=world,
            done=self._count_trained_batches(),
        )
        if len(order) == 0:
            raise ValueError(f"train must hold {unit} for each rank, got {len(items)}, world={world}")
        if order.dropped:
            rank_zero_info(f"{order.dropped} of {len(items)} {unit} an epoch are left out: fewer than ranks")
        identity = {unit: len(items), "fold": self.fold, "batch": self.batch * world, "seed": self.seed}
        changed = self.log is not None and any(self.log.changes.values())
        return Loader(self.training_samples, order, self.workers, identity, checked=not changed)

    def val_dataloader(self) -> Loader:
        rank, world = get_rank_and_world()
        items, unit = self.validation_items, self.item or self.unit
        if len(items) < world:  # Lightning would skip the empty rank, and the others wait for it
            raise ValueError(
                f"the validation set must hold {unit} for each rank, got {len(items)}, world={world}; "
                "take fewer devices, or give val"
            )
        order = ValidationOrder(items, self.batch, rank=rank, world=world)
        return Loader(self.validation_samples, order, self.workers)

    def _count_trained_batches(self) -> tuple[int, int]:
        """Return the (epoch, batches) trained, not fetched: Lightning's count, restored before it asks for loaders."""
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


def get_rank_and_world() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
