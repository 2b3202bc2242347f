"""How far in front of all others what belongs to a query stands. Q queries, N items, E embedding, P positives."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

TOP = (1, 5, 10)
TILE = 2**24  # scores at a time, 64 MB in float32


class Recall(NamedTuple):
    """Args: at: the share of queries with a positive among the first k. median: of the best positives' ranks, from 1.

    chance: what `at` is expected to be for a random order.
    """

    at: dict[int, float]
    median: float
    chance: dict[int, float]


def recall(
    queries: Float[Tensor, "Q E"], items: Float[Tensor, "N E"], pairs: Int64[Tensor, "P 2"], top: tuple[int, ...] = TOP
) -> Recall:
    """Args: pairs: (query, item), all that belong together; each query has one at least."""
    found = ranks(queries, items, pairs)
    counts = pairs[:, 0].bincount(minlength=len(queries)).double()
    return Recall(
        {k: (found <= k).double().mean().item() for k in top},
        found.double().quantile(0.5).item(),
        {k: (1 - missed(counts, len(items), min(k, len(items)))).mean().item() for k in top},
    )


def missed(positives: Float[Tensor, " Q"], items: int, k: int) -> Float[Tensor, " Q"]:
    """The chance that none of so many positives is among k of all items."""
    drawn = torch.arange(k, dtype=torch.float64)
    return ((items - positives[:, None] - drawn).clamp(min=0) / (items - drawn)).prod(1)


def ranks(
    queries: Float[Tensor, "Q E"], items: Float[Tensor, "N E"], pairs: Int64[Tensor, "P 2"]
) -> Int64[Tensor, " Q"]:
    """The rank of each query's best positive, from 1: of equal scores, what comes first among the items is in front.

    Raises: ValueError for a query without positives.
    """
    if lonely := (pairs[:, 0].bincount(minlength=len(queries)) == 0).nonzero()[:, 0].tolist():
        raise ValueError(f"every query must have a positive, got none for {lonely[:10]}")
    height = max(1, TILE // max(1, len(items)))
    place = torch.arange(len(items), device=items.device)
    found: list[Tensor] = []
    for start in range(0, len(queries), height):
        scores = queries[start : start + height] @ items.T
        inside = (pairs[:, 0] >= start) & (pairs[:, 0] < start + height)
        row, item = pairs[inside, 0] - start, pairs[inside, 1]
        own = scores[row, item]
        best = own.new_full((len(scores),), -torch.inf).scatter_reduce(0, row, own, "amax")
        first = torch.where(own == best[row], item, len(items))
        first = first.new_full((len(scores),), len(items)).scatter_reduce(0, row, first, "amin")
        ahead = (scores > best[:, None]) | ((scores == best[:, None]) & (place < first[:, None]))
        found.append(1 + ahead.sum(1))
    return torch.cat(found)
