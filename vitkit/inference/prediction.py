"""Predictions of a trained classifier."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.convert.open import open_classifier
from vitkit.data.batches import Reading, read_batches, read_paths
from vitkit.data.pictures import Batch
from vitkit.data.preprocess import PictureError
from vitkit.data.sources.source import Source
from vitkit.models.parts import require_image_model
from vitkit.support.devices import get_device


class Prediction(NamedTuple):
    """The most likely classes of an image, best first."""

    path: Path
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]


class UnreadableImage(NamedTuple):
    """An image that could not be read, with its error."""

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
    """Classify picture files, in order.

    For a model trained on sets of labels, probabilities are sigmoids, and classes above 0.5 are returned.

    Args:
        model: a model folder, or a bundle, as of `vitkit.zero_shot`.
        paths: one or several.
        top: maximum number of classes (default: 3, or all above 0.5).
        reduce: as in Pictures.
        unreadable: called with the error of each picture that cannot be read.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    for outcome in predict_files(open_classifier(model), paths, top, Reading(batch, workers, device, reduce)):
        if isinstance(outcome, Prediction):
            yield outcome
        else:
            unreadable(outcome.error)


def predict_files(
    bundle: Bundle,
    paths: Iterable[str | Path],
    top: int | None,
    reading: Reading,
    title: str | None = None,
    total: int | None = None,
) -> Iterator[Prediction | UnreadableImage]:
    """Yield one for each path, in order."""
    check_prediction_options(top, reading)
    bundle.model.to(get_device(reading.device))
    files = (os.fspath(path) for path in paths)
    for names, batch in read_paths(files, get_preprocess(bundle), reading, title, total):
        yield from predict_batch(bundle, names, batch, top)


def predict_source(
    bundle: Bundle, source: Source, top: int | None, reading: Reading, title: str | None
) -> Iterator[Prediction | UnreadableImage]:
    """Yield one for each image of a source, in order."""
    check_prediction_options(top, reading)
    bundle.model.to(get_device(reading.device))
    start = 0
    for batch in read_batches(source, range(len(source)), get_preprocess(bundle), reading, title):
        end = start + len(batch.indices) + len(batch.skipped)
        names = [source.get_name(index) for index in range(start, end)]
        yield from predict_batch(bundle, names, batch._replace(indices=batch.indices - start), top)
        start = end


def check_prediction_options(top: int | None, reading: Reading) -> None:
    if (top is not None and top < 1) or reading.batch < 1:
        raise ValueError(f"top and batch must be at least 1, got top={top}, batch={reading.batch}")


def predict_batch(
    bundle: Bundle, names: Sequence[str], batch: Batch, top: int | None
) -> Iterator[Prediction | UnreadableImage]:
    """Yield one for each name. Args: batch: its `indices` point into the names."""
    model, weight = require_image_model(bundle.model), next(bundle.model.parameters())
    with torch.inference_mode():  # not around the loop: it would stay open between batches
        logits = model.head(model.pool(model.features(batch.images.to(weight))))
    if not logits.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others in the batch from {names[0]} on")
    results = dict(zip(batch.indices.tolist(), choose_classes(logits.float(), top, bundle.multilabel), strict=True))
    lines = iter(batch.skipped)
    for index, name in enumerate(map(Path, names)):
        if index not in results:
            yield UnreadableImage(name, PictureError(next(lines)))
            continue
        indices, values = results[index]
        yield Prediction(name, tuple(bundle.class_names[label] for label in indices), tuple(values))


def choose_classes(logits: Tensor, top: int | None, multilabel: bool) -> Iterator[tuple[list[int], list[float]]]:
    """Yield the most likely classes of each row and their probabilities."""
    limit = min(top or (logits.shape[1] if multilabel else TOP), logits.shape[1])
    best = (logits.sigmoid() if multilabel else logits.softmax(dim=1)).topk(limit)
    for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        count = sum(value > 0.5 for value in values) if multilabel else limit
        yield indices[:count], values[:count]
