"""The DataModule of images with labels or without."""

from typing import NamedTuple

from vitkit.data.annotations.labels import LABELS, LABELS_OF_SOME
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.image_data import ImageData
from vitkit.data.order import Balanced, Draw
from vitkit.data.pictures import Augmentation, ImageReading, Pictures
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import Source
from vitkit.support.errors import format_few


class Images(ImageData):
    """Images, split into training and validation.

    Args:
        train, val: the sources, see `open_source`. Without val, fold `fold` of `folds` is held out.
        preprocess: of all images.
        batch: images a step and rank.
        augment: the torchvision transforms of training images.
        draw: the choice and order of an epoch's samples: Shuffled, Balanced, Repeated.
        seed: of the order and the augmentation, not of the split.
        reading: options for reading images.
        unlabelled: train and val are sources without labels, such as any folder of images.

    Raises: ValueError, one line, as soon as it is made.
    """

    def __init__(
        self,
        train: str,
        val: str | None = None,
        *,
        preprocess: Preprocess,
        batch: int = 64,
        folds: int = 5,
        fold: int = 0,
        augment: Augmentation = Augmentation(),
        draw: Draw | None = None,
        workers: int = 0,
        seed: int = 0,
        reading: ImageReading = ImageReading(),
        unlabelled: bool = False,
    ) -> None:
        refuse_balanced(draw, unlabelled)
        split = open_split(train, val, reading, folds, fold, unlabelled)
        self.training_pictures = Pictures(split.source, preprocess, augment=augment, seed=seed, reading=reading)
        super().__init__(
            preprocess,
            *split,
            training_samples=self.training_pictures,
            reading=reading,
            augmented=[self.training_pictures],
            batch=batch,
            fold=fold,
            draw=draw,
            workers=workers,
            seed=seed,
        )


class Split(NamedTuple):
    """The sources of training and validation images, and the samples of each."""

    source: Source
    held_out: Source
    training: list[int]
    validation: list[int]


def open_split(train: str, val: str | None, reading: ImageReading, folds: int, fold: int, unlabelled: bool) -> Split:
    """Open training and validation images; the arguments are those of Images."""
    annotation = UNLABELLED if unlabelled else LABELS
    source = open_source(train, annotation, reading.columns, reading.exclude, reading.skip_absent)
    if val is None:
        return Split(source, source, *annotation.split(source, folds, fold))
    held_out = open_source(
        val, UNLABELLED if unlabelled else LABELS_OF_SOME, reading.columns, reading.exclude, reading.skip_absent
    )
    _match_labels(source, held_out)
    return Split(source, held_out, list(range(len(source))), list(range(len(held_out))))


def refuse_balanced(draw: Draw | None, unlabelled: bool) -> None:
    if unlabelled and isinstance(draw, Balanced):
        raise ValueError("draw must not be Balanced where data.unlabelled: there are no classes")


def _match_labels(train: Source, val: Source) -> None:
    """Make the labels of both sides comparable: sets where either side has sets, and indices into train's classes.

    Raises: ValueError for classes of val alone. It may lack classes of train.
    """
    multilabel = train.multilabel or val.multilabel
    for source in (train, val) if multilabel else ():
        source.labels = [label if isinstance(label, tuple) else (label,) for label in source.labels]
    if others := sorted(set(val.class_names) - set(train.class_names)):
        known = format_few(train.class_names, 10)
        raise ValueError(f"val must have no classes but those of train ({known}), got {format_few(others, 10)}")
    places = {index: train.class_names.index(name) for index, name in enumerate(val.class_names)} | {-1: -1}
    val.labels = [
        tuple(sorted(places[index] for index in label)) if isinstance(label, tuple) else places[label]
        for label in val.labels
    ]
    val.class_names = train.class_names
