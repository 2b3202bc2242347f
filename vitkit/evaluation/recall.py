"""Recall and rank in retrieval between images and captions.

Q queries, N items or images, U captions, E embedding, P pairs of an image and a caption.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitkit.data.annotations.captions import index_captions, normalise_caption

TOP = (1, 5, 10)
TILE = 2**24  # scores at a time, 64 MB in float32


def compute_recall(ranks: Int64[Tensor, " Q"], k: int) -> float:
    """Return the recall at k: the share of queries with a positive among the first k items."""
    return (ranks <= k).double().mean().item()


def compute_median_rank(ranks: Int64[Tensor, " Q"]) -> float:
    return ranks.double().quantile(0.5).item()


RankMetric = Callable[[Tensor], float]
RECALLS: dict[str, RankMetric] = {f"R@{k}": partial(compute_recall, k=k) for k in TOP}
METRICS: dict[str, RankMetric] = {**RECALLS, "median_rank": compute_median_rank}


class Retrieval(NamedTuple):
    """Embeddings of images and captions, and the ranks of retrieval in both directions.

    Args:
        indices: of the images in their source.
        pairs: rows (image, caption) that are positives, sorted by image.
        ranks: by direction, the rank of each query's best positive, from 1.
    """

    indices: Sequence[int]
    images: Float[Tensor, "N E"]
    captions: tuple[str, ...]
    texts: Float[Tensor, "U E"]
    pairs: Int64[Tensor, "P 2"]
    ranks: Mapping[str, Int64[Tensor, " Q"]]

    def compute_metrics(self) -> dict[str, Any]:
        """Return every metric in both directions, the mean of all recalls, and the recalls of a random order."""
        metrics = {f"{way}_{name}": metric(self.ranks[way]) for way in self.ranks for name, metric in METRICS.items()}
        recalls = [value for name, value in metrics.items() if "_R@" in name]
        return {"mean_recall": mean(recalls), **metrics, "chance": self.compute_chance()}

    def compute_chance(self) -> dict[str, float]:
        """Return the expected recalls of a random order."""
        images, texts = len(self.images), len(self.texts)
        ways = ((self.pairs, images, texts), (self.pairs.flip(1), texts, images))
        return {
            f"{way}_R@{k}": compute_chance_recall(pairs, queries, items, k)
            for way, (pairs, queries, items) in zip(self.ranks, ways, strict=True)
            for k in TOP
        }

    def list_first_captions(self) -> Int64[Tensor, " N"]:
        """Return the first caption of each image."""
        first = {image: caption for image, caption in reversed(self.pairs.tolist())}
        return self.pairs.new_tensor([first[image] for image in range(len(self.images))])


def pair_captions(captions: Sequence[Sequence[str]], own_only: bool = False) -> tuple[tuple[str, ...], Tensor]:
    """Return the captions of all images, and the positive pairs (image, caption).

    Captions that `normalise_caption` makes equal count as one, a positive of every image that has it.

    Args: own_only: equal captions stay separate, each a positive of its own image alone, as in published results.
    """
    rows = [(image, text) for image, texts in enumerate(captions) for text in texts]
    if own_only:
        return tuple(text for _, text in rows), torch.tensor([(image, row) for row, (image, _) in enumerate(rows)])
    first = index_captions(text for _, text in rows)
    places = {key: place for place, key in enumerate(first)}
    pairs = dict.fromkeys((image, places[normalise_caption(text)]) for image, text in rows)
    return tuple(first.values()), torch.tensor([*pairs])


def retrieve(
    indices: Sequence[int],
    images: Float[Tensor, "N E"],
    captions: tuple[str, ...],
    texts: Float[Tensor, "U E"],
    pairs: Int64[Tensor, "P 2"],
) -> Retrieval:
    """Rank captions by images, and images by captions. See Retrieval for the arguments."""
    pairs = pairs.to(images.device)
    ranks = {
        "image_to_text": rank_positives(images, texts, pairs),
        "text_to_image": rank_positives(texts, images, pairs.flip(1)),
    }
    return Retrieval(indices, images, captions, texts, pairs, ranks)


ROWS = {"image_to_text": "image -> text", "text_to_image": "text -> image"}


def format_recall_rows(numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the table rows of both directions, with the recalls of a random order."""
    rows: list[tuple[str, str]] = []
    for way, name in ROWS.items():
        recalls = "  ".join(f"{numbers[f'{way}_R@{k}']:6.2%}" for k in TOP)
        chance = " ".join(f"{numbers['chance'][f'{way}_R@{k}']:.2%}" for k in TOP)
        rows.append((name, f"{recalls}  (chance {chance}), median rank {numbers[f'{way}_median_rank']:g}"))
    return rows


def compute_chance_recall(pairs: Int64[Tensor, "P 2"], queries: int, items: int, k: int) -> float:
    """Return the expected recall at k of a random order. Args: pairs: all positives, as (query, item)."""
    positives = pairs.unique(dim=0)[:, 0].bincount(minlength=queries).double()
    return (1 - compute_miss_probability(positives, items, min(k, items))).mean().item()


def compute_miss_probability(positives: Float[Tensor, " Q"], items: int, k: int) -> Float[Tensor, " Q"]:
    """Return the probability that a random choice of k items holds none of the positives of each query."""
    drawn = torch.arange(k, dtype=torch.float64, device=positives.device)
    return ((items - positives[:, None] - drawn).clamp(min=0) / (items - drawn)).prod(1)


def rank_positives(
    queries: Float[Tensor, "Q E"], items: Float[Tensor, "N E"], pairs: Int64[Tensor, "P 2"]
) -> Int64[Tensor, " Q"]:
    """Return the rank of each query's best positive, from 1. Of equal scores the first item ranks first.

    Equal items are scored once: a matrix product may give equal columns scores that differ in the last digit.

    Args: pairs: positives (query, item).
    Raises: ValueError for a query without positives, and for values that are not finite.
    """
    counts = pairs[:, 0].bincount(minlength=len(queries))
    if missing := (counts == 0).nonzero()[:, 0].tolist():
        raise ValueError(f"every query must have a positive, got none for {missing[:10]}")
    if not (queries.isfinite().all() and items.isfinite().all()):  # no score is above nan: all ranks would be 1
        raise ValueError("queries and items must be finite, got nan or inf; the model's weights are damaged")
    height, ends = max(1, TILE // max(1, len(items))), [0, *counts.cumsum(0).tolist()]
    pairs, place = pairs[pairs[:, 0].argsort()], torch.arange(len(items), device=items.device)
    unique, inverse = find_unique(items)
    ranks = [counts[:0]]
    for start in range(0, len(queries), height):
        scores = (queries[start : start + height] @ items[unique].T)[:, inverse]
        row, item = pairs[ends[start] : ends[start + len(scores)]].unbind(1)
        row = row - start
        positives = scores[row, item]
        best = positives.new_full((len(scores),), -torch.inf).scatter_reduce(0, row, positives, "amax")
        first = torch.where(positives == best[row], item, len(items))
        first = first.new_full((len(scores),), len(items)).scatter_reduce(0, row, first, "amin")
        ahead = (scores > best[:, None]) | ((scores == best[:, None]) & (place < first[:, None]))
        ranks.append(1 + ahead.sum(1))
    return torch.cat(ranks)


def find_unique(items: Float[Tensor, "N E"]) -> tuple[Int64[Tensor, " U"], Int64[Tensor, " N"]]:
    """Return the index of the first of each group of equal items, and the group of each item."""
    groups: dict[bytes, int] = {}
    unique: list[int] = []
    inverse: list[int] = []
    for place, row in enumerate(items.detach().cpu().contiguous().view(torch.uint8).numpy()):
        inverse.append(groups.setdefault(blake2b(row, digest_size=16).digest(), len(groups)))
        if len(groups) > len(unique):
            unique.append(place)
    return torch.tensor(unique, device=items.device), torch.tensor(inverse, device=items.device)
