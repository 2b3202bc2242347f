"""Metrics of a classifier, each a function and a line of a table. Letters: N samples, K classes, D features."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

BINS = 15  # of confidence; https://arxiv.org/abs/1706.04599, section 3


class Table(NamedTuple):
    """A number for each class; 0 where there is nothing to divide by."""

    precision: Float[Tensor, " K"]
    recall: Float[Tensor, " K"]
    f1: Float[Tensor, " K"]
    support: Int64[Tensor, " K"]


class Bins(NamedTuple):
    """By confidence, in equal steps from 0 to 1: how many predictions, how sure on average, and how many right."""

    predictions: Int64[Tensor, " bins"]
    confidence: Float[Tensor, " bins"]
    accuracy: Float[Tensor, " bins"]


def by_class(right: Tensor, predicted: Tensor, support: Tensor) -> Table:
    """From how often each class was rightly predicted, predicted at all, and there."""
    precision, recall = right / predicted.clamp(min=1), right / support.clamp(min=1)
    return Table(precision, recall, 2 * right / (predicted + support).clamp(min=1), support)


def tabulate(logits: Float[Tensor, "N K"], labels: Shaped[Tensor, "N ..."]) -> Table:
    """Return the numbers of each class, of samples with one label each or with a set; a set holds logits above 0."""
    if labels.ndim == 1:
        confusion = count_confusion(logits, labels)
        return by_class(confusion.diagonal(), confusion.sum(0), confusion.sum(1))
    predicted = logits > 0
    return by_class(*(sets.sum(0) for sets in (predicted & labels, predicted, labels)))


def count_confusion(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> Int64[Tensor, "K K"]:
    """Count labels (rows) by predictions."""
    classes = logits.shape[1]
    return (labels * classes + logits.argmax(dim=1)).bincount(minlength=classes**2).view(classes, classes)


def macro(logits: Float[Tensor, "N K"], labels: Shaped[Tensor, "N ..."], column: int) -> float:
    """Return the mean of a column of `Table` over the classes that are there at all."""
    table = tabulate(logits, labels)
    return table[column][table.support > 0].mean().item()


def micro(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"], column: int) -> float:
    """Return a column of the `Table` of all classes as one."""
    predicted = logits > 0
    return by_class(*(sets.sum() for sets in (predicted & labels, predicted, labels)))[column].item()


def top1(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float:
    return (logits.argmax(dim=1) == labels).float().mean().item()


def top5(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float | None:
    """Return the share of samples whose label is among the first five, None where there are no more classes."""
    if logits.shape[1] <= 5:
        return None
    return (logits.topk(5).indices == labels[:, None]).any(dim=1).float().mean().item()


def negative_log_likelihood(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float:
    return F.cross_entropy(logits, labels).item()


def mean_confidence(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float:
    return logits.softmax(dim=1).amax(dim=1).mean().item()


def expected_calibration_error(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float:
    """Return the mean gap between confidence and accuracy of the bins of `reliability`, weighted by their sizes."""
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    bins = reliability(confidence, predicted == labels)
    return ((bins.predictions * (bins.confidence - bins.accuracy).abs()).sum() / len(labels)).item()


def mean_average_precision(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"]) -> float:
    """Return the mean over the classes that are there at all."""
    return average_precision(logits, labels)[labels.any(dim=0)].mean().item()


def exact_match(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"]) -> float:
    return ((logits > 0) == labels).all(dim=1).float().mean().item()


Metric = Callable[[Tensor, Tensor], float | None]
COLUMNS = ("precision", "recall", "f1")
MACRO: Mapping[str, Metric] = {f"macro_{name}": partial(macro, column=place) for place, name in enumerate(COLUMNS)}
ONE_LABEL: Mapping[str, Metric] = {
    "top1": top1,
    "top5": top5,
    **MACRO,
    "negative_log_likelihood": negative_log_likelihood,
    "mean_confidence": mean_confidence,
    "expected_calibration_error": expected_calibration_error,
}
MULTILABEL: Mapping[str, Metric] = {
    "mean_average_precision": mean_average_precision,
    **MACRO,
    **{f"micro_{name}": partial(micro, column=place) for place, name in enumerate(COLUMNS)},
    "exact_match": exact_match,
}


def measure(logits: Float[Tensor, "N K"], labels: Shaped[Tensor, "N ..."]) -> dict[str, float]:
    """Return every metric by its name, of samples with one label each (N,) or with a set of labels each (N, K)."""
    metrics = ONE_LABEL if labels.ndim == 1 else MULTILABEL
    values = {name: metric(logits, labels) for name, metric in metrics.items()}
    return {name: value for name, value in values.items() if value is not None}


def class_frequencies(labels: Bool[Tensor, "N K"]) -> float:
    """Return the mean average precision of equal scores for all samples: the mean frequency of a class."""
    return labels.float().mean(dim=0)[labels.any(dim=0)].mean().item()


def average_precision(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"]) -> Float[Tensor, " K"]:
    """Of each class; 0 where it is not there."""
    from torchmetrics.functional.classification import binary_average_precision

    found: list[Tensor] = []
    for scores, truth in zip(logits.T, labels.T, strict=True):
        # Ranks in 0..1: torchmetrics takes other numbers for logits, whose sigmoids are equal where they are large.
        ranks = scores.unique(return_inverse=True)[1] / len(scores)
        found.append(binary_average_precision(ranks, truth.long()) if truth.any() else torch.zeros(()))
    return torch.stack(found)


def reliability(confidence: Float[Tensor, " N"], right: Bool[Tensor, " N"]) -> Bins:
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # a bin holds its upper edge
    count = place.bincount(minlength=BINS)
    sums = (place.bincount(weights=values.double(), minlength=BINS) for values in (confidence, right))
    mean_confidence, accuracy = ((total / count.clamp(min=1)).float() for total in sums)
    return Bins(count, mean_confidence, accuracy)
