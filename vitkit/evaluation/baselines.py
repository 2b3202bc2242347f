"""Baselines of a data set: the accuracy of probes on pixels, and of the most frequent class."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitkit.data.image_data import ImageData
from vitkit.data.order import Pick, draw_samples
from vitkit.data.pictures import SKIP, Pictures
from vitkit.data.sources.source import Source
from vitkit.evaluation.metrics import compute_frequency_baseline
from vitkit.evaluation.probes import (
    PROBED,
    ProbeData,
    Scores,
    fit_probes,
    flatten_pixels,
    predict_most_frequent,
    score_predictions,
)
from vitkit.support.extras import require_package

BATCH = 256  # pictures


def evaluate_baselines(data: ImageData) -> Scores:
    """Return the validation scores of the most frequent class and of probes on pixels.

    The probes are fitted to at most PROBED training pictures. Raises: ValueError if scikit-learn is missing.
    """
    require_package("sklearn", "baselines")
    _, training = read_pixels(data, data.source, draw_samples(data.training, PROBED))
    _, held_out = read_pixels(data, data.held_out, data.validation)
    frequent = predict_most_frequent(np.array(data.training_labels), len(held_out.labels))
    return score_predictions(frequent | fit_probes(training, held_out), held_out.labels)


def score_frequencies(data: ImageData, labels: Tensor) -> dict[str, float]:
    """Return the score of class frequencies on validation labels: accuracy, for multilabel mean average precision."""
    if labels.ndim == 2:
        return {"class frequencies": compute_frequency_baseline(labels)}
    return score_predictions(
        predict_most_frequent(np.array(data.training_labels), len(labels)), labels.numpy()
    ).accuracy


def read_pixels(data: ImageData, source: Source, samples: Sequence[int]) -> tuple[list[int], ProbeData]:
    """Return the indices of readable samples, and their preprocessed pixels at most SIDE on a side."""
    pictures = Pictures(source, data.preprocess, reading=replace(data.reading, on_error=SKIP))
    indices: list[int] = []
    pixels: list[Tensor] = []
    labels: list[Tensor] = []
    for start in range(0, len(samples), BATCH):
        batch = pictures[[Pick(0, sample) for sample in samples[start : start + BATCH]]]
        indices += batch.indices.tolist()
        pixels.append(flatten_pixels(batch.images, data.preprocess))
        labels.append(batch.labels)
    rows = torch.cat(pixels).numpy()
    return indices, ProbeData(np.empty((len(rows), 0)), rows, torch.cat(labels).numpy())
