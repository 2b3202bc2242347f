"""The nearest of a collection. N rows, E embedding."""

import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float16, Float32

from vitkit.retrieval import approximate
from vitkit.retrieval.approximate import CAPTIONS, PICTURES, ROUNDING, ask
from vitkit.retrieval.database_errors import asking
from vitkit.retrieval.store import VECTOR, Store, matrix

# Of clip-retrieval (https://github.com/rom1504/clip-retrieval, clip_back.py), for CLIP's pictures.
DUPLICATE = 0.94
COLUMNS = ["file", "root", "path", "caption", "width", "height"]


class Match(NamedTuple):
    """A picture, or a caption of it; `score` is the cosine. `also` are near-duplicates of it that were left out."""

    score: float
    file: Path
    root: str
    path: str
    caption: str
    width: int
    height: int
    also: tuple["Match", ...] = ()


class Query(NamedTuple):
    """`kind` is picture or text: how the vector was made. Nearest to it are captions, or else pictures."""

    vector: Float16[np.ndarray, " E"]
    kind: str
    captions: bool = False
    where: str = ""

    @property
    def condition(self) -> str:
        return narrowed(self.among, self.where)

    @property
    def among(self) -> str:
        return CAPTIONS if self.captions else PICTURES

    @property
    def name(self) -> str:
        """As `run.queries` calls those that it measures."""
        return f"{self.kind} for captions" if self.captions else self.kind


def search(store: Store, asked: Query, top: int, near: int | float | None = None) -> list[Match]:
    """The nearest first, at most `top`.

    Args: near: cosine from which on two are near-duplicates, of which only the first is shown.
    Raises: ValueError for a condition that is none.
    """
    if top < 1:
        raise ValueError(f"top must be at least 1, got top={top}")
    if near is not None and not 0 < near <= 1:
        raise ValueError(f"near must be a cosine above 0 and at most 1, got near={near}")
    top = min(top, max(1, store.items.count_rows()))  # the database makes room for as many as are asked for
    if near is None:
        return answered(store, asked, top)[0]
    count = top
    while True:
        count *= 4
        found, vectors = answered(store, asked, count)
        if len(kept := collapsed(found, vectors, near)) >= top or len(found) < count:
            return kept[:top]


def answered(store: Store, asked: Query, top: int) -> tuple[list[Match], Float16[np.ndarray, "N E"]]:
    with asking(asked.where):
        table = ask(store, asked.vector, top, [*COLUMNS, VECTOR], asked.condition, probed(store, asked))
    rows = zip(table["_distance"].to_pylist(), *(table[name].to_pylist() for name in COLUMNS), strict=True)
    return [Match(1 - distance, Path(os.fsdecode(file)), *rest) for distance, file, *rest in rows], matrix(table)


def narrowed(kind: str, where: str) -> str:
    """A kind of rows, and of them those for which the condition holds; it may end in a comment."""
    return f"{kind} and ({where}\n)" if where else kind


def probed(store: Store, asked: Query) -> int:
    """How many partitions to look into: of a condition so many that they hold as many rows that it leaves.

    0 for exact search, also where it leaves few, and where not even all partitions were enough.
    """
    index = approximate.of(store)
    measured = index and index.measured.get(asked.name)
    if not measured or measured.recall < approximate.GOAL:
        return 0
    if not asked.where:
        return measured.probes
    rows, left = (store.items.count_rows(which) for which in (asked.among, asked.condition))
    return 0 if left <= approximate.ROWS else math.ceil(measured.probes * rows / left)


def collapsed(found: list[Match], vectors: Float16[np.ndarray, "N E"], near: int | float) -> list[Match]:
    """Each joins the first, among those nearer to the query, that it is a near-duplicate of."""
    units = full(vectors)
    heads: list[int] = []
    also: dict[int, list[Match]] = {}
    for row, one in enumerate(found):
        close = units[heads] @ units[row] >= near - ROUNDING if heads else np.zeros(0, bool)
        if close.any():
            also.setdefault(heads[int(close.argmax())], []).append(one)
        else:
            heads.append(row)
    return [found[head]._replace(also=tuple(also.get(head, ()))) for head in heads]


def full(vectors: Float16[np.ndarray, "N E"]) -> Float32[np.ndarray, "N E"]:
    """In 32 bits, and as long as 1 again: 16 bits leave the product of two equal ones 1e-4 off 1."""
    wide = vectors.astype(np.float32)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)
