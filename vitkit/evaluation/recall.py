"""Retrieval between images and captions: which captions belong to which images, and how far in front they are found.

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


def recall_at(ranks: Int64[Tensor, " Q"], k: int) -> float:
    """Return the share of queries with a positive among the first k items."""
    return (ranks <= k).double().mean().item()


def median_rank(ranks: Int64[Tensor, " Q"]) -> float:
    return ranks.double().quantile(0.5).item()


RankMetric = Callable[[Tensor], float]
RECALLS: dict[str, RankMetric] = {f"R@{k}": partial(recall_at, k=k) for k in TOP}
METRICS: dict[str, RankMetric] = {**RECALLS, "median_rank": median_rank}


class Retrieval(NamedTuple):
    """Images and captions in one space, and how far in front each finds the other.

    Args:
        indices: the images' places in their source.
        pairs: rows of `images` and of `captions` that belong together, image by image.
        ranks: in both directions the rank of each query's best positive, from 1.
    """

    indices: Sequence[int]
    images: Float[Tensor, "N E"]
    captions: tuple[str, ...]
    texts: Float[Tensor, "U E"]
    pairs: Int64[Tensor, "P 2"]
    ranks: Mapping[str, Int64[Tensor, " Q"]]

    def numbers(self) -> dict[str, Any]:
        """Return every metric in both directions, the mean of all recalls, and the recalls of a random order."""
        measured = {f"{way}_{name}": metric(self.ranks[way]) for way in self.ranks for name, metric in METRICS.items()}
        recalls = [value for name, value in measured.items() if "_R@" in name]
        return {"mean_recall": mean(recalls), **measured, "chance": self.chance()}

    def chance(self) -> dict[str, float]:
        """Return the recalls that are expected of a random order."""
        images, texts = len(self.images), len(self.texts)
        ways = ((self.pairs, images, texts), (self.pairs.flip(1), texts, images))
        return {
            f"{way}_R@{k}": expected_recall(pairs, queries, items, k)
            for way, (pairs, queries, items) in zip(self.ranks, ways, strict=True)
            for k in TOP
        }

    def first_captions(self) -> Int64[Tensor, " N"]:
        """Return the first caption of each image."""
        first = {image: caption for image, caption in reversed(self.pairs.tolist())}
        return self.pairs.new_tensor([first[image] for image in range(len(self.images))])


def pair_captions(captions: Sequence[Sequence[str]], own_only: bool = False) -> tuple[tuple[str, ...], Tensor]:
    """Return the captions of all images, and the pairs (image, caption) that belong together.

    Captions that are equal but for case and white space (see `normalise_caption`) are one caption of every image that
    has it.

    Args: own_only: as in published numbers, each caption belongs to one image alone, and equal ones are several.
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


ROWS = {"image_to_text": "captions of a picture", "text_to_image": "pictures of a caption"}


def list_rows(numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a table of `Retrieval.numbers`: both directions, each beside chance."""
    rows: list[tuple[str, str]] = []
    for way, name in ROWS.items():
        recalls = "  ".join(f"{numbers[f'{way}_R@{k}']:6.2%}" for k in TOP)
        chance = " ".join(f"{numbers['chance'][f'{way}_R@{k}']:.2%}" for k in TOP)
        rows.append((name, f"{recalls}  (chance {chance}), median rank {numbers[f'{way}_median_rank']:g}"))
    return rows


def expected_recall(pairs: Int64[Tensor, "P 2"], queries: int, items: int, k: int) -> float:
    """Return the recall at k of a random order. Args: pairs: (query, item), all that belong together."""
    positives = pairs.unique(dim=0)[:, 0].bincount(minlength=queries).double()
    return (1 - missed(positives, items, min(k, items))).mean().item()


def missed(positives: Float[Tensor, " Q"], items: int, k: int) -> Float[Tensor, " Q"]:
    """The chance that none of so many positives is among k of all items."""
    drawn = torch.arange(k, dtype=torch.float64, device=positives.device)
    return ((items - positives[:, None] - drawn).clamp(min=0) / (items - drawn)).prod(1)


def rank_positives(
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
