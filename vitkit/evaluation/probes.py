"""What can be read from frozen features, beside what can be read from pixels in the same way.

Letters: N samples, D features, P pixel values.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from vitkit.data.order import draw_samples, split_folds
from vitkit.data.preprocess import Preprocess
from vitkit.evaluation.metrics import neighbours

FOLDS = 5


NEIGHBOURS = 20  # as DINO has it, https://arxiv.org/abs/2104.14294, section 4.1


SIDE = 32  # pixels: larger pictures are scaled down to it


KNN, LINEAR = f"{NEIGHBOURS}-NN", "linear"


class Frozen(NamedTuple):
    """Of each picture what the model's head reads, the picture itself, and its class.

    There may be no pixels. `random` is what the same network made of it before it was trained, where that is asked.
    """

    pooled: Float[np.ndarray, "N D"]
    pixels: UInt8[np.ndarray, "N P"]
    labels: Int64[np.ndarray, " N"]
    random: Float[np.ndarray, "N D"] | None = None

    def of(self, samples: Sequence[int]) -> "Frozen":
        random = None if self.random is None else self.random[samples]
        return Frozen(self.pooled[samples], self.pixels[samples], self.labels[samples], random)


def fitted(known: Frozen, asked: Frozen, kinds: Sequence[str] = (KNN, LINEAR)) -> dict[str, float]:
    """Accuracy on `asked` of what was fitted to `known`."""
    answers = predictions(known, asked, kinds)
    return {name: float((found == asked.labels).mean()) for name, found in answers.items()}


def cross_validate(frozen: Frozen, most: int, kinds: Sequence[str] = (KNN, LINEAR)) -> dict[str, float]:
    """Accuracy over all samples, each predicted by what was fitted to at most so many of the other folds.

    Raises: ValueError if a class has fewer samples than there are folds.
    """
    present, labels = np.unique(frozen.labels, return_inverse=True)
    right: dict[str, int] = {}
    for fold in range(FOLDS):
        inside, outside = split_folds(labels.tolist(), [str(label) for label in present], FOLDS, fold)
        known, asked = frozen.of(draw_samples(inside, most)), frozen.of(outside)
        for name, found in predictions(known, asked, kinds).items():
            right[name] = right.get(name, 0) + int((found == asked.labels).sum())
    return {name: hits / len(labels) for name, hits in right.items()}


def predictions(
    known: Frozen, asked: Frozen, kinds: Sequence[str] = (KNN, LINEAR)
) -> dict[str, Int64[np.ndarray, " M"]]:
    """Args: kinds: KNN, LINEAR, or both."""
    found: dict[str, np.ndarray] = {}
    for where, one, other in views(known, asked):
        if KNN in kinds:
            found[f"{KNN} on {where}"] = neighbours(one, known.labels, other, NEIGHBOURS)
        if LINEAR in kinds:
            found[f"{LINEAR} on {where}"] = linear(one, known.labels, other)
    found["most frequent class"] = np.full(len(asked.labels), np.bincount(known.labels).argmax())
    return found


def views(known: Frozen, asked: Frozen) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """What the numbers are called, and those of both."""
    yield "features", known.pooled, asked.pooled
    if known.random is not None and asked.random is not None:
        yield "features of a random encoder", known.random, asked.random
    if known.pixels.shape[1]:
        yield "pixels", known.pixels.astype(np.float32) / 255, asked.pixels.astype(np.float32) / 255


def linear(known: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Logistic regression on standardised numbers."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) == 1:  # nothing to separate, which the solver refuses
        return np.full(len(asked), labels[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stops after 1,000 steps is as good as it gets
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(known, labels).predict(asked)


def pixels(images: Float[Tensor, "B C h w"], preprocess: Preprocess) -> UInt8[Tensor, "B P"]:
    """The bytes behind what a model reads, at most SIDE on a side."""
    height, width = (min(side, SIDE) for side in preprocess.size)
    small = F.interpolate(preprocess.bytes(images).cpu().float(), (height, width), mode="area")
    return small.round().to(torch.uint8).flatten(1)
