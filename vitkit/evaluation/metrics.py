"""How good predictions are, as numbers. Letters: N samples, K classes, D features."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

BINS = 15  # of confidence; https://arxiv.org/abs/1706.04599, section 3
TEMPERATURE = 0.07  # of the votes of neighbours; https://arxiv.org/abs/2104.14294, appendix F.1
CELLS = 2**26  # similarities held at a time: 256 MB


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


def counts(labels: Int64[Tensor, " N"], predicted: Int64[Tensor, " N"], classes: int) -> Int64[Tensor, "K K"]:
    """Labels (rows) by predictions."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)


def by_class(right: Tensor, predicted: Tensor, support: Tensor) -> Table:
    """From how often each class was rightly predicted, predicted at all, and there."""
    precision, recall = right / predicted.clamp(min=1), right / support.clamp(min=1)
    return Table(precision, recall, 2 * right / (predicted + support).clamp(min=1), support)


def macro(table: Table) -> Mapping[str, float]:
    """Means over the classes that are there at all."""
    there = table.support > 0
    return {name: getattr(table, name)[there].mean().item() for name in ("precision", "recall", "f1")}


def of_one(logits: Float[Tensor, "N K"], labels: Int64[Tensor, " N"]) -> dict[str, float | Mapping[str, float]]:
    """Of pictures with one label each."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    classes = logits.shape[1]
    probabilities = logits.softmax(dim=1)
    confidence, predicted = probabilities.max(dim=1)
    result: dict[str, float | Mapping[str, float]] = {"top1": (predicted == labels).float().mean().item()}
    if classes > 5:
        result["top5"] = (logits.topk(5).indices == labels[:, None]).any(dim=1).float().mean().item()
    result["macro"] = macro(confused(counts(labels, predicted, classes)))
    result["negative_log_likelihood"] = F.cross_entropy(logits, labels).item()
    result["mean_confidence"] = confidence.mean().item()
    error = multiclass_calibration_error(probabilities, labels, classes, n_bins=BINS, norm="l1")
    result["calibration_error"] = error.item()
    result["most_frequent_class"] = labels.bincount().max().item() / len(labels)
    return result


def confused(table: Int64[Tensor, "K K"]) -> Table:
    return by_class(table.diagonal(), table.sum(0), table.sum(1))


def of_several(logits: Float[Tensor, "N K"], labels: Bool[Tensor, "N K"]) -> dict[str, float | Mapping[str, float]]:
    """Of pictures with a set of labels each; a class is predicted from 0.5 on."""
    predicted = logits > 0
    total = by_class(*(both.sum() for both in (predicted & labels, predicted, labels)))
    there = labels.any(dim=0)
    return {
        "mean_average_precision": average_precision(logits, labels)[there].mean().item(),
        "macro": macro(sets(predicted, labels)),
        "micro": {"precision": total.precision.item(), "recall": total.recall.item(), "f1": total.f1.item()},
        "exact": (predicted == labels).all(dim=1).float().mean().item(),
        # Equal scores for all pictures: the precision at every threshold is the class's frequency.
        "class_frequencies": labels.float().mean(dim=0)[there].mean().item(),
    }


def sets(predicted: Bool[Tensor, "N K"], labels: Bool[Tensor, "N K"]) -> Table:
    return by_class(*(both.sum(dim=0) for both in (predicted & labels, predicted, labels)))


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


def neighbours(
    known: Float[np.ndarray, "N D"], labels: Int64[np.ndarray, " N"], asked: Float[np.ndarray, "M D"], k: int = 20
) -> Int64[np.ndarray, " M"]:
    """Labels by a vote of the k nearest in angle, each with weight exp(cosine / TEMPERATURE)."""
    known_unit, asked_unit = (F.normalize(torch.from_numpy(values).float(), dim=1) for values in (known, asked))
    truth, k = torch.from_numpy(labels), min(k, len(known))
    answers = []
    for some in asked_unit.split(max(CELLS // len(known), 1)):
        nearest = (some @ known_unit.T).topk(k)
        votes = torch.zeros(len(some), int(truth.max()) + 1)
        votes.scatter_add_(1, truth[nearest.indices], (nearest.values / TEMPERATURE).exp())
        answers.append(votes.argmax(dim=1))
    return torch.cat(answers).numpy()
