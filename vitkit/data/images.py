"""Pictures as batches for the Trainer, with labels or without."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchvision.transforms.v2 import Transform

from vitkit.data.annotations.labels import LABELS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.image_data import ImageData
from vitkit.data.order import Balanced, Draw
from vitkit.data.pictures import RAISE, Pictures
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import COLUMNS, Source


class Images(ImageData):
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
        unlabelled: train and val are what `open_source` understands without labels, such as any folder of pictures.

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
        refuse_balanced(draw, unlabelled)
        preprocess = Preprocess(size, mean, std, interpolation, crop)
        split = open_split(train, val, columns, folds, fold, unlabelled)
        reading: dict[str, Any] = {"reduce": reduce, "on_error": on_error}
        varied = {"augment": augment, "augment_tensors": augment_tensors, "seed": seed}
        self.training_pictures = Pictures(split.source, preprocess, **varied, **reading)
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


def open_split(train: str, val: str | None, columns: tuple[str, str], folds: int, fold: int, unlabelled: bool) -> Split:
    """Open training and validation images; the arguments are those of Images."""
    annotation = UNLABELLED if unlabelled else LABELS
    source = open_source(train, annotation, columns)
    if val is None:
        return Split(source, source, *LABELS.split(source, folds, fold))
    held_out = open_source(val, annotation, columns)
    _agree(source, held_out)
    return Split(source, held_out, list(range(len(source))), list(range(len(held_out))))


def refuse_balanced(draw: Draw | None, unlabelled: bool) -> None:
    if unlabelled and isinstance(draw, Balanced):
        raise ValueError("draw must not be Balanced where data.unlabelled: there are no classes")


def _agree(train: Source, val: Source) -> None:
    """Make labels of both sides mean the same: sets where either has sets, and indices into train's classes.

    Raises: ValueError where the classes differ; but of sets val may lack some, since rare ones seldom are in it.
    """
    multilabel = train.multilabel or val.multilabel
    for source in (train, val) if multilabel else ():
        source.labels = [label if isinstance(label, tuple) else (label,) for label in source.labels]
    only = [sorted(set(one.class_names) - set(other.class_names)) for one, other in ((train, val), (val, train))]
    if only[1] or (only[0] and not multilabel):
        raise ValueError(f"train and val must have equal classes, got only in train {only[0]}, only in val {only[1]}")
    places = {place: train.class_names.index(name) for place, name in enumerate(val.class_names)} | {-1: -1}
    val.labels = [
        tuple(sorted(places[one] for one in label)) if isinstance(label, tuple) else places[label]
        for label in val.labels
    ]
    val.class_names = train.class_names
