"""Accuracy that can be reached with frozen features, with pixels in the same way, and without looking.

Letters: N samples, M others that are asked, D features, P pixel values, k neighbours.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from vitkit.data.order import draw_samples, split_folds
from vitkit.data.preprocess import Preprocess

NEIGHBOURS = 20  # as DINO has it, https://arxiv.org/abs/2104.14294, section 4.1
TEMPERATURE = 0.07  # of the votes of neighbours; the same, appendix F.1
CELLS = 2**26  # similarities held at a time: 256 MB
SIDE = 32  # pixels: larger pictures are scaled down to it
PROBED = 10_000  # pictures that probes are fitted to: 10 classes of 32x32 RGB are a minute of solving on one core
FOLDS = 5  # of a cross-validation
KNN, LINEAR, FREQUENT = f"{NEIGHBOURS}-NN", "linear", "most frequent class"


class Frozen(NamedTuple):
    """Of each picture what the model's head reads, the picture itself, and its class.

    There may be no features or no pixels. `random` is what the same network made of it before it was trained.
    """

    pooled: Float[np.ndarray, "N D"]
    pixels: UInt8[np.ndarray, "N P"]
    labels: Int64[np.ndarray, " N"]
    random: Float[np.ndarray, "N D"] | None = None

    def of(self, samples: Sequence[int]) -> "Frozen":
        random = None if self.random is None else self.random[samples]
        return Frozen(self.pooled[samples], self.pixels[samples], self.labels[samples], random)


class Neighbours(NamedTuple):
    """The rows of the nearest, and their weights exp(cosine / TEMPERATURE)."""

    rows: Int64[Tensor, "M k"]
    weights: Float[Tensor, "M k"]


def find_neighbours(
    known: Float[np.ndarray, "N D"], asked: Float[np.ndarray, "M D"], k: int = NEIGHBOURS
) -> Neighbours:
    """Return the k nearest in angle."""
    units, queries = (F.normalize(torch.from_numpy(values).float(), dim=1) for values in (known, asked))
    parts = [(part @ units.T).topk(min(k, len(units))) for part in queries.split(max(CELLS // len(units), 1))]
    cosines = torch.cat([part.values for part in parts])
    return Neighbours(torch.cat([part.indices for part in parts]), (cosines / TEMPERATURE).exp())


def predict_by_neighbours(
    known: Float[np.ndarray, "N D"],
    labels: Int64[np.ndarray, " N"],
    asked: Float[np.ndarray, "M D"],
    k: int = NEIGHBOURS,
) -> Int64[np.ndarray, " M"]:
    """Return the labels that the weights of the k nearest vote for."""
    truth, neighbours = torch.from_numpy(labels), find_neighbours(known, asked, k)
    votes = torch.zeros(len(asked), int(truth.max()) + 1)
    return votes.scatter_add_(1, truth[neighbours.rows], neighbours.weights).argmax(dim=1).numpy()


def predict_linearly(
    known: Float[np.ndarray, "N D"], labels: Int64[np.ndarray, " N"], asked: Float[np.ndarray, "M D"]
) -> Int64[np.ndarray, " M"]:
    """Return the labels of logistic regression on standardised numbers."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) == 1:  # nothing to separate, which the solver refuses
        return np.full(len(asked), labels[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stops after 1,000 steps is as good as it gets
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(known, labels).predict(asked)


PROBES = {KNN: predict_by_neighbours, LINEAR: predict_linearly}


def fit_probes(known: Frozen, asked: Frozen, kinds: Sequence[str] = (KNN, LINEAR)) -> dict[str, float]:
    """Return the accuracy on `asked` of probes that are fitted to `known`. Args: kinds: names in PROBES."""
    scores: dict[str, float] = {}
    for name, one, other in views(known, asked):
        for kind in kinds:
            predicted = PROBES[kind](one, known.labels, other)
            scores[f"{kind} on {name}"] = float((predicted == asked.labels).mean())
    return scores


def views(known: Frozen, asked: Frozen) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the numbers that are there, by name."""
    if known.pooled.shape[1]:
        yield "features", known.pooled, asked.pooled
    if known.random is not None and asked.random is not None:
        yield "features of a random encoder", known.random, asked.random
    if known.pixels.shape[1]:
        yield "pixels", known.pixels.astype(np.float32) / 255, asked.pixels.astype(np.float32) / 255


def score_most_frequent(training: Sequence[int] | np.ndarray, labels: Sequence[int] | np.ndarray) -> float:
    """Return the accuracy on `labels` of the most frequent class of the training part, of equals the first."""
    return float((np.asarray(labels) == np.bincount(np.asarray(training)).argmax()).mean())


class ProbeSplit(NamedTuple):
    """The labels of a training part, those of its samples that probes are fitted to, and the samples held out."""

    training: Int64[np.ndarray, " N"]
    known: Frozen
    asked: Frozen


def score_splits(splits: Iterable[ProbeSplit], kinds: Sequence[str] = (KNN, LINEAR)) -> dict[str, float]:
    """Return the accuracy, over the held-out samples of all splits, of the most frequent class and of probes."""
    sums: dict[str, float] = {}
    count = 0
    for training, known, asked in splits:
        count += len(asked.labels)
        frequent = {FREQUENT: score_most_frequent(training, asked.labels)}
        for name, value in {**frequent, **fit_probes(known, asked, kinds)}.items():
            sums[name] = sums.get(name, 0.0) + value * len(asked.labels)
    return {name: total / count for name, total in sums.items()}


def split_cross_validation(frozen: Frozen, most: int) -> Iterator[ProbeSplit]:
    """Yield the FOLDS splits of a cross-validation, in each of which probes are fitted to at most so many samples.

    Raises: ValueError if a class has fewer samples than there are folds.
    """
    present, labels = np.unique(frozen.labels, return_inverse=True)
    for fold in range(FOLDS):
        inside, outside = split_folds(labels.tolist(), [str(label) for label in present], FOLDS, fold)
        yield ProbeSplit(frozen.labels[inside], frozen.of(draw_samples(inside, most)), frozen.of(outside))


def flatten_pixels(images: Float[Tensor, "B C h w"], preprocess: Preprocess) -> UInt8[Tensor, "B P"]:
    """Return the bytes behind what a model reads, at most SIDE on a side."""
    height, width = (min(side, SIDE) for side in preprocess.size)
    small = F.interpolate(preprocess.denormalise(images).cpu().float(), (height, width), mode="area")
    return small.round().to(torch.uint8).flatten(1)
