"""How far in front of all others what belongs to a query stands. Q queries, N items, E embedding, P positives."""

from hashlib import blake2b
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

TOP = (1, 5, 10)
TILE = 2**24  # scores at a time, 64 MB in float32


class Recall(NamedTuple):
    """Args: at: the share of queries with a positive among the first k. median: of the best positives' ranks, from 1.

    chance: what `at` is expected to be for a random order. ranks: of each query, as the function `ranks` gives them.
    """

    at: dict[int, float]
    median: float
    chance: dict[int, float]
    ranks: Int64[Tensor, " Q"]


def recall(
    queries: Float[Tensor, "Q E"], items: Float[Tensor, "N E"], pairs: Int64[Tensor, "P 2"], top: tuple[int, ...] = TOP
) -> Recall:
    """Args: pairs: (query, item), all that belong together; each query has one at least."""
    found = ranks(queries, items, pairs)
    counts = pairs.unique(dim=0)[:, 0].bincount(minlength=len(queries)).double()
    return Recall(
        {k: (found <= k).double().mean().item() for k in top},
        found.double().quantile(0.5).item(),
        {k: (1 - missed(counts, len(items), min(k, len(items)))).mean().item() for k in top},
        found,
    )


def missed(positives: Float[Tensor, " Q"], items: int, k: int) -> Float[Tensor, " Q"]:
    """The chance that none of so many positives is among k of all items."""
    drawn = torch.arange(k, dtype=torch.float64, device=positives.device)
    return ((items - positives[:, None] - drawn).clamp(min=0) / (items - drawn)).prod(1)


def ranks(
    queries: Float[Tensor, "Q E"], items: Float[Tensor, "N E"], pairs: Int64[Tensor, "P 2"]
) -> Int64[Tensor, " Q"]:
    """The rank of each query's best positive, from 1: of equal scores, what comes first among the items is in front.

    Equal items have equal scores, which a product of matrices alone does not give them: it differs in the last digit
    between columns.

    Raises: ValueError for a query without positives, and for numbers that are not finite.
    """
    counts = pairs[:, 0].bincount(minlength=len(queries))
    if lonely := (counts == 0).nonzero()[:, 0].tolist():
        raise ValueError(f"every query must have a positive, got none for {lonely[:10]}")
    if not (queries.isfinite().all() and items.isfinite().all()):  # nothing is greater than nan: all ranks would be 1
        raise ValueError("queries and items must be finite, got others; the model's weights are damaged")
    height, ends = max(1, TILE // max(1, len(items))), [0, *counts.cumsum(0).tolist()]
    pairs, place = pairs[pairs[:, 0].argsort()], torch.arange(len(items), device=items.device)
    firsts, own_first = unequal(items)
    found = [counts[:0]]
    for start in range(0, len(queries), height):
        scores = (queries[start : start + height] @ items[firsts].T)[:, own_first]
        row, item = pairs[ends[start] : ends[start + len(scores)]].unbind(1)
        row = row - start
        own = scores[row, item]
        best = own.new_full((len(scores),), -torch.inf).scatter_reduce(0, row, own, "amax")
        first = torch.where(own == best[row], item, len(items))
        first = first.new_full((len(scores),), len(items)).scatter_reduce(0, row, first, "amin")
        ahead = (scores > best[:, None]) | ((scores == best[:, None]) & (place < first[:, None]))
        found.append(1 + ahead.sum(1))
    return torch.cat(found)


def unequal(items: Float[Tensor, "N E"]) -> tuple[Int64[Tensor, " U"], Int64[Tensor, " N"]]:
    """The places of the different items, and which of these each item is."""
    numbers: dict[bytes, int] = {}
    firsts: list[int] = []
    which: list[int] = []
    for place, row in enumerate(items.detach().cpu().contiguous().view(torch.uint8).numpy()):
        which.append(numbers.setdefault(blake2b(row, digest_size=16).digest(), len(numbers)))
        if len(numbers) > len(firsts):
            firsts.append(place)
    return torch.tensor(firsts, device=items.device), torch.tensor(which, device=items.device)
