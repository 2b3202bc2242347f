"""What a model answers, as it is and without each head, in the numbers that a page shows.

L layers, H heads, K outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

FEW = 20  # classes that are all kept
TOP = 5
DIGITS = 6


def of_classes(
    logits: Float[Tensor, " K"], removed: Sequence[Float[Tensor, "_ K"]], classes: Sequence[str], several: bool
) -> dict[str, Any]:
    """Of the likeliest classes and of those that become the first without some head; all where there are few.

    `effects` are changes of the first class's probability.

    Args: removed: of each layer (H, K), row h without head h.
    """
    chances = [F.sigmoid(x) if several else x.softmax(-1) for x in (logits, *removed)]
    order = logits.argsort(descending=True, stable=True)
    firsts = torch.cat([x.argmax(-1).view(-1) for x in removed])
    kept = order if len(order) <= FEW else torch.cat([order[:TOP], unseen(firsts, order[:TOP])])
    first = order[0]
    return {
        "kind": "classes",
        "several": several,
        "classes": [classes[place] for place in kept.tolist()],
        "now": {"logits": numbers(logits[kept]), "chances": numbers(chances[0][kept])},
        "without": [
            {"logits": numbers(those[:, kept]), "chances": numbers(these[:, kept])}
            for those, these in zip(removed, chances[1:], strict=True)
        ],
        "effects": [numbers(these[:, first] - chances[0][first]) for these in chances[1:]],
    }


def of_vectors(vector: Float[Tensor, " K"], removed: Sequence[Float[Tensor, "_ K"]]) -> dict[str, Any]:
    """Of a model without classes: how far the picture's vector turns, 1 minus the cosine."""
    turned = [1 - F.cosine_similarity(x.double(), vector.double(), dim=-1) for x in removed]
    return {"kind": "vector", "width": len(vector), "effects": [numbers(x) for x in turned]}


def unseen(places: Tensor, seen: Tensor) -> Tensor:
    """Each once, in rising order, without those that are seen."""
    distinct = places.unique()
    return distinct[~torch.isin(distinct, seen)]


def numbers(x: Tensor) -> list[Any]:
    if x.ndim > 1:
        return [numbers(row) for row in x]
    return [round(value, DIGITS) for value in x.tolist()]
