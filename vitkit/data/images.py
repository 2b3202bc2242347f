"""Pictures as batches for the Trainer, with labels or without."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import distributed
from torchvision.transforms.v2 import Transform

from vitkit.data.order import Balanced, Draw, TrainingOrder, ValidationOrder, split
from vitkit.data.pictures import RAISE, Loader, Pictures
from vitkit.data.sources import COLUMNS, Source, open_source, open_unlabelled
from vitkit.preprocess import Preprocess


class Images(LightningDataModule):
    """Pictures, split into training and validation.

    Args:
        train, val: what `open_source` understands. Without val, fold `fold` of `folds` is held out.
        size, mean, std, interpolation, crop: see Preprocess.
        batch: pictures a step and rank.
        augment, augment_tensors: torchvision transforms of the training pictures, before they are resized and after
            they are normalised; see Pictures.
        draw: which of them an epoch holds: Shuffled, Balanced, Repeated.
        seed: of the order and the augmentation, not of the split.
        columns: what a table or data set calls the picture and its label.
        reduce: decode JPEGs at 1/2, 1/4 or 1/8 while both sides stay this many times what the model reads; 2 is safe
            for crops of at least half a side.
        on_error: "skip" leaves out pictures that cannot be read, and lists them at the end; "raise" stops at the first.
        unlabelled: train and val are what `open_unlabelled` understands, such as any folder of pictures.

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
        augment_tensors: Sequence[Transform] = (),
        draw: Draw | None = None,
        workers: int = 0,
        seed: int = 0,
        columns: tuple[str, str] = COLUMNS,
        reduce: float | None = None,
        on_error: str = RAISE,
        unlabelled: bool = False,
    ) -> None:
        super().__init__()
        if batch < 1 or workers < 0:
            raise ValueError(f"batch must be at least 1 and workers at least 0, got batch={batch}, workers={workers}")
        if unlabelled and isinstance(draw, Balanced):
            raise ValueError("draw must not be Balanced where data.unlabelled: there are no classes")
        self.preprocess = Preprocess(size, mean, std, interpolation, crop)
        opening = open_unlabelled if unlabelled else open_source
        self.source = self.held_out = opening(train, columns)
        if val is None:
            self.training, self.validation = split(self.source.labels, self.source.classes, folds, fold)
        else:
            self.held_out = opening(val, columns)
            _agree(self.source, self.held_out)
            self.training, self.validation = list(range(len(self.source))), list(range(len(self.held_out)))
        self.fold = fold
        self.batch = batch
        self.draw = draw
        self.workers = workers
        self.seed = seed
        self.reading: dict[str, Any] = {"reduce": reduce, "on_error": on_error}
        varied = {"augment": augment, "augment_tensors": augment_tensors, "seed": seed}
        self.training_pictures = Pictures(self.source, self.preprocess, **varied, **self.reading)
        self.validation_pictures = Pictures(self.held_out, self.preprocess, **self.reading)

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

    def train_dataloader(self) -> Loader:
        rank, world = _place()
        order = TrainingOrder(
            self.training,
            self.batch,
            self.seed,
            labels=[self.source.labels[sample] for sample in self.training],
            draw=self.draw,
            rank=rank,
            world=world,
            done=self._trained(),
        )
        if len(order) == 0:
            raise ValueError(f"train must hold a picture for each rank, got {len(self.training)}, world={world}")
        if order.dropped:
            rank_zero_info(f"{order.dropped} of {len(self.training)} pictures an epoch are left out: fewer than ranks")
        identity = {"pictures": len(self.training), "fold": self.fold, "batch": self.batch * world, "seed": self.seed}
        return Loader(self.training_pictures, order, self.workers, identity)

    def val_dataloader(self) -> Loader:
        rank, world = _place()
        if len(self.validation) < world:  # Lightning would skip the empty rank, and the others wait for it
            raise ValueError(f"val must hold a picture for each rank, got {len(self.validation)}, world={world}")
        order = ValidationOrder(self.validation, self.batch, rank=rank, world=world)
        return Loader(self.validation_pictures, order, self.workers)

    def unvaried_dataloader(self, samples: Sequence[int]) -> Loader:
        """These of the training pictures, as validation would read them; each rank has its share."""
        rank, world = _place()
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


def _place() -> tuple[int, int]:
    """(rank, world)"""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _agree(train: Source, val: Source) -> None:
    """Make labels of both sides mean the same: sets where either has sets, and indices into train's classes.

    Raises: ValueError where the classes differ; but of sets val may lack some, since rare ones seldom are in it.
    """
    several = train.several or val.several
    for source in (train, val) if several else ():
        source.labels = [label if isinstance(label, tuple) else (label,) for label in source.labels]
    only = [sorted(set(one.classes) - set(other.classes)) for one, other in ((train, val), (val, train))]
    if only[1] or (only[0] and not several):
        raise ValueError(f"train and val must have equal classes, got only in train {only[0]}, only in val {only[1]}")
    places = {place: train.classes.index(name) for place, name in enumerate(val.classes)} | {-1: -1}
    val.labels = [
        tuple(sorted(places[one] for one in label)) if isinstance(label, tuple) else places[label]
        for label in val.labels
    ]
    val.classes = train.classes
