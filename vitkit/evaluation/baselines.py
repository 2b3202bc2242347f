"""Accuracy that a training's pixels give, and its labels alone; a model that learns anything beats them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitkit.data.image_data import ImageData
from vitkit.data.order import Pick, draw_samples
from vitkit.data.pictures import SKIP, Pictures
from vitkit.data.sources.source import Source
from vitkit.evaluation.metrics import class_frequencies
from vitkit.evaluation.probes import FREQUENT, PROBED, Frozen, fit_probes, flatten_pixels, score_most_frequent
from vitkit.support.extras import require_package

BATCH = 256  # pictures


def evaluate_baselines(data: ImageData) -> dict[str, float]:
    """Return the validation accuracy of the most frequent class and of probes on pixels.

    They are fitted to at most PROBED training pictures. Raises: ValueError if scikit-learn is missing.
    """
    require_package("sklearn", "baselines")
    _, known = read_pixels(data, data.source, draw_samples(data.training, PROBED))
    _, asked = read_pixels(data, data.held_out, data.validation)
    return {**score_frequencies(data, torch.from_numpy(asked.labels)), **fit_probes(known, asked)}


def score_frequencies(data: ImageData, labels: Tensor) -> dict[str, float]:
    """Return what is reached on validation labels without looking: an accuracy, of sets a mean average precision."""
    if labels.ndim == 2:
        return {"class frequencies": class_frequencies(labels)}
    return {FREQUENT: score_most_frequent(np.array(data.training_labels), labels.numpy())}


def read_pixels(data: ImageData, source: Source, samples: Sequence[int]) -> tuple[list[int], Frozen]:
    """Return the samples that can be read, and their pixels, as the model reads them at most SIDE on a side."""
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
    return indices, Frozen(np.empty((len(rows), 0)), rows, torch.cat(labels).numpy())
