"""Metrics of a classifier. To add one, write a function and list it in ONE_LABEL or MULTILABEL.

Letters: N samples, K classes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

BINS = 15  # of confidence; https://arxiv.org/abs/1706.04599, section 3


class ClassScores(NamedTuple):
    """The scores of each class; 0 where a denominator is 0."""

    precision: Float[Tensor, " K"]
    recall: Float[Tensor, " K"]
    f1: Float[Tensor, " K"]
    support: Int64[Tensor, " K"]


class Bins(NamedTuple):
    """The number, mean confidence and accuracy of predictions in equal bins of confidence from 0 to 1."""

    predictions: Int64[Tensor, " bins"]
    confidence: Float[Tensor, " bins"]
    accuracy: Float[Tensor, " bins"]


def divide_counts(correct: Tensor, predicted: Tensor, support: Tensor) -> ClassScores:
    """Return the scores of classes from their counts of correct predictions, of predictions and of labels."""
    precision, recall = correct / predicted.clamp(min=1), correct / support.clamp(min=1)
    return ClassScores(precision, recall, 2 * correct / (predicted + support).clamp(min=1), support)


def score_classes(logits: Float[Tensor, "N K"], labels: Shaped[Tensor, "N ..."]) -> ClassScores:
    """Return the scores of each class for labels (N,) or (N, K). Multilabel predictions are logits above 0."""
    if labels.ndim == 1:
        confusion = count_confusion(logits, labels)
        return divide_counts(confusion.diagonal(), confusion.sum(0), confusion.sum(1))
    predicted = logits > 0
    return divide_counts(*(sets.sum(0) for sets in (predicted & labels, predicted, labels)))


def count_confusion(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> Int64[Tensor, "K K"]:
    """Count labels (rows) by predictions."""
    classes = logits.shape[1]
    return (labels * classes + logits.argmax(dim=1)).bincount(minlength=classes**2).view(classes, classes)


def compute_macro(logits: Float[Tensor, "N K"], labels: Shaped[Tensor, "N ..."], column: int) -> float:
    """Return the mean of a column of `ClassScores` over the classes with support."""
    scores = score_classes(logits, labels)
    return scores[column][scores.support > 0].mean().item()


def compute_micro(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"], column: int) -> float:
    """Return a column of `ClassScores` with the counts summed over all classes."""
    predicted = logits > 0
    return divide_counts(*(sets.sum() for sets in (predicted & labels, predicted, labels)))[column].item()


def compute_top1(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float:
    return (logits.argmax(dim=1) == labels).float().mean().item()


def compute_top5(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float | None:
    """Return the top-5 accuracy, None for at most five classes."""
    if logits.shape[1] <= 5:
        return None
    return (logits.topk(5).indices == labels[:, None]).any(dim=1).float().mean().item()


def compute_negative_log_likelihood(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float:
    return F.cross_entropy(logits, labels).item()


def compute_mean_confidence(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float:
    return logits.softmax(dim=1).amax(dim=1).mean().item()


def compute_calibration_error(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> float:
    """Return the mean gap between the confidence and the accuracy of bins, weighted by their sizes."""
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    bins = compute_reliability(confidence, predicted == labels)
    return ((bins.predictions * (bins.confidence - bins.accuracy).abs()).sum() / len(labels)).item()


def compute_mean_average_precision(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"]) -> float:
    """Return the mean average precision over the classes with support."""
    return compute_average_precision(logits, labels)[labels.any(dim=0)].mean().item()


def compute_exact_match(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"]) -> float:
    return ((logits > 0) == labels).all(dim=1).float().mean().item()


Metric = Callable[[Tensor, Tensor], float | None]
COLUMNS = ("precision", "recall", "f1")
MACRO: Mapping[str, Metric] = {
    f"macro_{name}": partial(compute_macro, column=place) for place, name in enumerate(COLUMNS)
}
ONE_LABEL: Mapping[str, Metric] = {
    "top1": compute_top1,
    "top5": compute_top5,
    **MACRO,
    "negative_log_likelihood": compute_negative_log_likelihood,
    "mean_confidence": compute_mean_confidence,
    "expected_calibration_error": compute_calibration_error,
}
MULTILABEL: Mapping[str, Metric] = {
    "mean_average_precision": compute_mean_average_precision,
    **MACRO,
    **{f"micro_{name}": partial(compute_micro, column=i) for i, name in enumerate(COLUMNS)},
    "exact_match": compute_exact_match,
}


def compute_metrics(logits: Float[Tensor, "N K"], labels: Shaped[Tensor, "N ..."]) -> dict[str, float]:
    """Return every metric by its name, for labels (N,) or multilabel ones (N, K)."""
    metrics = ONE_LABEL if labels.ndim == 1 else MULTILABEL
    values = {name: metric(logits, labels) for name, metric in metrics.items()}
    return {name: value for name, value in values.items() if value is not None}


def compute_frequency_baseline(labels: Bool[Tensor, "N K"]) -> float:
    """Return the mean average precision of equal scores for all samples: the mean frequency of a class."""
    return labels.float().mean(dim=0)[labels.any(dim=0)].mean().item()


def compute_average_precision(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"]) -> Float[Tensor, " K"]:
    """Return the average precision of each class; 0 without support."""
    from torchmetrics.functional.classification import binary_average_precision

    precisions: list[Tensor] = []
    for scores, truth in zip(logits.T, labels.T, strict=True):
        # Ranks in 0..1: torchmetrics applies a sigmoid to anything else, which makes large logits equal.
        ranks = scores.unique(return_inverse=True)[1] / len(scores)
        precisions.append(binary_average_precision(ranks, truth.long()) if truth.any() else torch.zeros(()))
    return torch.stack(precisions)


def compute_reliability(confidence: Float[Tensor, " N"], correct: Bool[Tensor, " N"]) -> Bins:
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # a bin holds its upper edge
    count = place.bincount(minlength=BINS)
    sums = (place.bincount(weights=values.double(), minlength=BINS) for values in (confidence, correct))
    mean_confidence, accuracy = ((total / count.clamp(min=1)).float() for total in sums)
    return Bins(count, mean_confidence, accuracy)
