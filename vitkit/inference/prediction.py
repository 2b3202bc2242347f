"""Predictions of a trained classifier."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.convert.open import open_classifier
from vitkit.data.batches import Reading, batches, group_paths
from vitkit.data.pictures import Batch
from vitkit.data.preprocess import PictureError
from vitkit.data.sources.source import Source
from vitkit.models.parts import require_image_model
from vitkit.support.devices import get_device


class Prediction(NamedTuple):
    """The likeliest classes of one picture, best first."""

    path: Path
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]


class Unreadable(NamedTuple):
    """A picture that could not be read, and why."""

    path: Path
    error: PictureError


TOP = 3


def raise_unreadable(error: PictureError) -> NoReturn:
    raise error


def predict(
    model: str | Path | Bundle,
    paths: str | Path | Iterable[str | Path],
    *,
    top: int | None = None,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    reduce: float | None = None,
    unreadable: Callable[[PictureError], None] = raise_unreadable,
) -> Iterator[Prediction]:
    """Classify picture files, in order, by the model in a folder.

    A model that was trained on sets of labels gives each class its own sigmoid, and those above 0.5 are shown.

    Args:
        model: also what `vitkit.zero_shot` gives.
        paths: also just one.
        top: so many classes at most, the likeliest (default: 3, or all above 0.5).
        reduce: as in Pictures.
        unreadable: gets the error of each picture that fails.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    for found in predict_files(open_classifier(model), paths, top, Reading(batch, workers, device, reduce)):
        if isinstance(found, Prediction):
            yield found
        else:
            unreadable(found.error)


def predict_files(
    bundle: Bundle,
    paths: Iterable[str | Path],
    top: int | None,
    reading: Reading,
    title: str | None = None,
    total: int | None = None,
) -> Iterator[Prediction | Unreadable]:
    """One for every path, in order."""
    check_prediction_options(top, reading)
    bundle.model.to(get_device(reading.device))
    files = (os.fspath(path) for path in paths)
    for names, batch in group_paths(files, get_preprocess(bundle), reading, title, total):
        yield from predict_batch(bundle, names, batch, top)


def predict_source(
    bundle: Bundle, source: Source, top: int | None, reading: Reading, title: str | None
) -> Iterator[Prediction | Unreadable]:
    """One for every picture of the source, in order."""
    check_prediction_options(top, reading)
    bundle.model.to(get_device(reading.device))
    start = 0
    for batch in batches(source, range(len(source)), get_preprocess(bundle), reading, title):
        end = start + len(batch.indices) + len(batch.skipped)
        names = [source.get_name(index) for index in range(start, end)]
        yield from predict_batch(bundle, names, batch._replace(indices=batch.indices - start), top)
        start = end


def check_prediction_options(top: int | None, reading: Reading) -> None:
    if (top is not None and top < 1) or reading.batch < 1:
        raise ValueError(f"top and batch must be at least 1, got top={top}, batch={reading.batch}")


def predict_batch(
    bundle: Bundle, names: Sequence[str], batch: Batch, top: int | None
) -> Iterator[Prediction | Unreadable]:
    """One for every name; `batch.indices` are places among them."""
    model, weight = require_image_model(bundle.model), next(bundle.model.parameters())
    with torch.inference_mode():  # not around the loop: it would be open while the caller goes on
        logits = model.head(model.pool(model.features(batch.images.to(weight))))
    if not logits.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others for {names[0]} or what follows")
    read = dict(zip(batch.indices.tolist(), likeliest(logits.float(), top, bundle.multilabel), strict=True))
    lines = iter(batch.skipped)
    for index, name in enumerate(map(Path, names)):
        if index not in read:
            yield Unreadable(name, PictureError(next(lines)))
            continue
        indices, values = read[index]
        yield Prediction(name, tuple(bundle.class_names[label] for label in indices), tuple(values))


def likeliest(logits: Tensor, top: int | None, several: bool) -> Iterator[tuple[list[int], list[float]]]:
    """Of each row, classes and their probabilities."""
    most = min(top or (logits.shape[1] if several else TOP), logits.shape[1])
    best = (logits.sigmoid() if several else logits.softmax(dim=1)).topk(most)
    for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        shown = sum(value > 0.5 for value in values) if several else most
        yield indices[:shown], values[:shown]
