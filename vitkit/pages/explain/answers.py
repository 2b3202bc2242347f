"""A model's outputs with all heads and without each head, as numbers that a page shows.

L layers, H heads, K outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

FEW = 20  # up to so many classes, all are kept
TOP = 5
DIGITS = 6


def compare_classes(
    logits: Float[Tensor, " K"], ablated: Sequence[Float[Tensor, "_ K"]], class_names: Sequence[str], multilabel: bool
) -> dict[str, Any]:
    """Return the logits and probabilities with all heads, and those with each head removed.

    They cover the top classes and those that rank first when some head is removed, or all classes if there are at
    most FEW. `effects` are the changes in the probability of the first class.

    Args: ablated: logits (H, K) of each layer; row h is without head h.
    """
    probabilities = [F.sigmoid(x) if multilabel else x.softmax(-1) for x in (logits, *ablated)]
    order = logits.argsort(descending=True, stable=True)
    firsts = torch.cat([x.argmax(-1).view(-1) for x in ablated])
    kept = order if len(order) <= FEW else torch.cat([order[:TOP], exclude(firsts, order[:TOP])])
    first = order[0]
    return {
        "kind": "classes",
        "multilabel": multilabel,
        "classes": [class_names[index] for index in kept.tolist()],
        "now": {"logits": round_values(logits[kept]), "probabilities": round_values(probabilities[0][kept])},
        "without": [
            {"logits": round_values(x[:, kept]), "probabilities": round_values(p[:, kept])}
            for x, p in zip(ablated, probabilities[1:], strict=True)
        ],
        "effects": [round_values(p[:, first] - probabilities[0][first]) for p in probabilities[1:]],
    }


def compare_embeddings(embedding: Float[Tensor, " K"], ablated: Sequence[Float[Tensor, "_ K"]]) -> dict[str, Any]:
    """Return the cosine distance between the image embeddings with and without each head, if there are no classes."""
    distances = [1 - F.cosine_similarity(x.double(), embedding.double(), dim=-1) for x in ablated]
    return {"kind": "embedding", "width": len(embedding), "effects": [round_values(x) for x in distances]}


def exclude(indices: Tensor, excluded: Tensor) -> Tensor:
    """Return the distinct indices in rising order, without those that are excluded."""
    distinct = indices.unique()
    return distinct[~torch.isin(distinct, excluded)]


def round_values(x: Tensor) -> list[Any]:
    if x.ndim > 1:
        return [round_values(row) for row in x]
    return [round(value, DIGITS) for value in x.tolist()]
