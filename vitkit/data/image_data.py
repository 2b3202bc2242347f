"""The DataModule of all samples that have an image."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch.utils.data import Dataset

from vitkit.data.data_module import Data, get_rank_and_world
from vitkit.data.duplicates import find_shared_samples
from vitkit.data.omissions import Omissions
from vitkit.data.order import Draw, Labels, ValidationOrder, count_per_class
from vitkit.data.pictures import Augmentation, Batch, ImageReading, Loader, Pictures
from vitkit.data.preprocess import Preprocess
from vitkit.data.sample_record import SampleLog, SampleRecord, divide_samples
from vitkit.data.sources.source import Source

# Fields of a training batch that only some data have, in words.
FIELDS = {"images": "one image", "labels": "a label"}


class ImageData(Data):
    """Images of a source, split into training and validation.

    Args:
        preprocess: of all images.
        source, held_out: the sources of training and validation images; the same one if it is split.
        reading: options for reading images.
        augmented: the training images with their augmentation, once for each view.
        training, validation, training_samples, batch, fold, draw, workers, seed: see Data.
    """

    unit: ClassVar[str] = "pictures"
    fields: ClassVar[tuple[str, ...]] = Batch._fields  # of a training batch

    def __init__(
        self,
        preprocess: Preprocess,
        source: Source,
        held_out: Source,
        training: list[int],
        validation: list[int],
        *,
        training_samples: Dataset[Any],
        reading: ImageReading,
        augmented: Sequence[Pictures],
        batch: int,
        fold: int,
        draw: Draw | None,
        workers: int,
        seed: int,
    ) -> None:
        self.validation_pictures = Pictures(held_out, preprocess, reading=reading)
        super().__init__(
            training,
            validation,
            training_samples=training_samples,
            validation_samples=self.validation_pictures,
            batch=batch,
            fold=fold,
            draw=draw,
            workers=workers,
            seed=seed,
        )
        self.source, self.held_out, self.reading, self.augmented = source, held_out, reading, augmented

    def stop_augmentation(self) -> None:
        for pictures in self.augmented:
            pictures.augment = Augmentation()

    def change_preprocess(self, window: tuple[int, int] | None, background: str | None) -> None:
        """Give the preprocessing of all images this window and background."""
        for pictures in (self.validation_pictures, *self.augmented):
            pictures.preprocess = replace(pictures.preprocess, window=window, background=background)

    @property
    def preprocess(self) -> Preprocess:
        return self.validation_pictures.preprocess

    @property
    def omissions(self) -> Omissions:
        omissions = Omissions()
        for source in dict.fromkeys((self.source, self.held_out)):
            omissions.update(source.omissions)
        trained, validated = (
            count_per_class([source.labels[sample] for sample in samples], self.num_classes)
            for source, samples in ((self.source, self.training), (self.held_out, self.validation))
        )
        counts = [*zip(self.class_names, trained, validated, strict=True)]
        omissions.add("classes without a training picture", [name for name, number, _ in counts if not number])
        omissions.add(
            "classes trained on but not validated, as no picture of them is held out",
            [name for name, number, held_out in counts if number and not held_out],
        )
        if self.source is self.held_out:
            again = [self.name_sample(sample) for sample in sorted({*self.training} & {*self.validation})]
            omissions.add("held-out pictures, as there are too few: the training pictures are validated instead", again)
        return omissions

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.source.class_names

    @property
    def multilabel(self) -> bool:
        return self.source.multilabel

    @property
    def groups(self) -> Sequence[int] | None:
        """The group of each sample that a split keeps together with its group, None where each is a group."""
        return None

    @property
    def training_labels(self) -> Labels:
        return [self.source.labels[sample] for sample in self.training]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def size(self) -> tuple[int, int]:
        return self.preprocess.size

    @property
    def channels(self) -> int:
        return self.preprocess.channels

    @property
    def one_label(self) -> bool:
        """True if every image has exactly one label."""
        return self.num_classes > 0 and not self.multilabel

    def name_sample(self, sample: int) -> str:
        return self.source.get_name(sample)

    def name_validation_sample(self, sample: int) -> str:
        return self.held_out.get_name(sample)

    def find_duplicates(self) -> list[tuple[int, int]]:
        return find_shared_samples(self.source, self.training, self.held_out, self.validation)

    def start_log(self, record: SampleRecord) -> None:
        sides = divide_samples(record, self.source, self.held_out, self.training, self.validation, self.groups)
        if len(record.keys):  # else the samples stay in their order
            self.training, self.validation = sides.training, sides.validation
        self.log = SampleLog((self.source, self.held_out), sides, record.folds, record.fold)
        for pictures in (*self.augmented[:1], self.validation_pictures):
            pictures.request_digests()

    def confirm_digests(self, samples: Iterable[int], held_out: bool) -> None:
        for pictures in [self.validation_pictures] if held_out else self.augmented[:1]:
            pictures.confirm_digests(samples)

    def make_unaugmented_loader(self, samples: Sequence[int]) -> Loader:
        """Return a loader of training images without augmentation; each rank has its share."""
        rank, world = get_rank_and_world()
        pictures = Pictures(self.source, self.preprocess, reading=self.reading)
        return Loader(pictures, ValidationOrder(samples, self.batch, rank=rank, world=world), self.workers)


def get_images(data: Data, task: str = "", fields: Sequence[str] = ()) -> ImageData:
    """Return the data if it holds images, and its training batches the FIELDS that a task reads.

    Args: task: the name of the task.
    Raises: ValueError for other data.
    """
    name = type(data).__name__
    if not isinstance(data, ImageData):
        raise ValueError(f"data must hold images, got {name}, which holds {data.unit}")
    if missing := [FIELDS[field] for field in fields if field not in data.fields]:
        raise ValueError(f"data must give {' and '.join(missing)} of each sample for {task}, got {name}")
    return data
