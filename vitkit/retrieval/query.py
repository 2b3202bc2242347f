"""Search in a collection. N rows, E embedding."""

import math
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float16, Float32

from vitkit.retrieval import approximate
from vitkit.retrieval.approximate import CAPTIONS, PICTURES, ROUNDING, search_rows
from vitkit.retrieval.database_errors import explain_condition_errors
from vitkit.retrieval.store import VECTOR, Store, get_vectors

# A text, a name in quotes, a comment, a word, or another character.
TOKEN = re.compile(
    r"""'[^']*'|"[^"]*"|`[^`]*`|--[^\r\n]*|/\*(?:(?!/\*|\*/).)*\*/|\w+(?!['"`\w])|[^\w'"`\r$#\\;/-]|-(?!-)|/(?![/*])""",
    re.DOTALL,
)
COLUMNS = ["file", "root", "path", "caption", "width", "height"]


class Match(NamedTuple):
    """A picture, or a caption of it. `score` is the cosine similarity, `also` are near-duplicates left out for it."""

    score: float
    file: Path
    root: str
    path: str
    caption: str
    width: int
    height: int
    also: tuple["Match", ...] = ()


class MatchGroup(NamedTuple):
    """The matches of a query, or pictures that are duplicates of the first one.

    Args: kind: "identical files" or "near-duplicates"; "" for a query. query: one of several, as it was given.
    """

    matches: list[Match]
    kind: str = ""
    query: str = ""

    @property
    def lowest(self) -> float:
        """The lowest score: of duplicates the lowest similarity to the first one."""
        return min(match.score for match in self.matches)

    @property
    def title(self) -> str:
        return f"{len(self.matches)} {self.kind}, lowest similarity {self.lowest:.4f}" if self.kind else self.query


class Query(NamedTuple):
    """A search for pictures, or for captions. `kind` says what was embedded: picture or text."""

    vector: Float16[np.ndarray, " E"]
    kind: str
    captions: bool = False
    where: str = ""

    @property
    def condition(self) -> str:
        return join_conditions(self.target, self.where)

    @property
    def target(self) -> str:
        return CAPTIONS if self.captions else PICTURES

    @property
    def name(self) -> str:
        """The key of its measurement in an `Index`."""
        return f"{self.kind} for captions" if self.captions else self.kind


def search_store(store: Store, query: Query, top: int, near: int | float | None = None) -> list[Match]:
    """Return the nearest matches, at most `top`, best first.

    Args: near: cosine similarity of near-duplicates, of which only the first is returned.
    Raises: ValueError for an invalid condition.
    """
    if top < 1:
        raise ValueError(f"top must be at least 1, got top={top}")
    if near is not None:
        check_near(near)
    top = min(top, max(1, store.items.count_rows()))  # the database allocates as many rows as are asked for
    if near is None:
        return find_matches(store, query, top)[0]
    count = top
    while True:
        count *= 4
        matches, vectors = find_matches(store, query, count)
        if len(heads := collapse_duplicates(matches, vectors, near)) >= top or len(matches) < count:
            return heads[:top]


def check_near(near: int | float) -> None:
    if not 0 < near <= 1:
        raise ValueError(f"near must be a cosine above 0 and at most 1, got near={near}")


def find_matches(store: Store, query: Query, top: int) -> tuple[list[Match], Float16[np.ndarray, "N E"]]:
    with explain_condition_errors(query.where):
        probes = count_probes(store, query)
        table = search_rows(store, query.vector, top, [*COLUMNS, VECTOR], query.condition, probes)
    rows = zip(table["_distance"].to_pylist(), *(table[name].to_pylist() for name in COLUMNS), strict=True)
    matches = [Match(1 - distance, Path(os.fsdecode(file)), *rest) for distance, file, *rest in rows]
    return matches, get_vectors(table)


def join_conditions(target: str, where: str) -> str:
    """Return a condition for both. The line break ends a comment in `where`.

    Raises: ValueError for brackets that are not balanced: `where` would replace the target.
    """
    check_brackets(where)
    return f"{target} and ({where}\n)" if where else target


def check_brackets(where: str) -> None:
    """Check that a condition closes the brackets that it opens, and no others, outside of texts and comments.

    The database's parser cannot check it: it ignores what follows an expression. Raises: ValueError, also for what some
    dialect of SQL reads as another text or comment, such as e'\\'' or $$ $$.
    """
    depth = end = 0
    while end < len(where):
        if (match := TOKEN.match(where, end)) is None:
            raise ValueError(f"texts and comments must end, and be in standard SQL, got {where[end:]!r:.40}")
        end, token = match.end(), match[0]
        depth += (token == "(") - (token == ")")
        if depth < 0:
            raise ValueError("brackets must be opened before they are closed")
    if depth:
        raise ValueError("brackets must be closed")


def count_probes(store: Store, query: Query) -> int:
    """Return how many partitions to search; 0 for exact search.

    A condition multiplies the measured number by the share of rows that it excludes, so that as many remain. Search is
    exact where few rows remain, and where all partitions did not reach MIN_RECALL.
    """
    index = approximate.read_index(store)
    measurement = index and index.measurements.get(query.name)
    if not measurement or measurement.recall < approximate.MIN_RECALL:
        return 0
    if not query.where:
        return measurement.probes
    rows, remaining = (store.items.count_rows(condition) for condition in (query.target, query.condition))
    return 0 if remaining <= approximate.MIN_ROWS else math.ceil(measurement.probes * rows / remaining)


def collapse_duplicates(matches: list[Match], vectors: Float16[np.ndarray, "N E"], near: int | float) -> list[Match]:
    """Move each match into `also` of the best match that it is a near-duplicate of."""
    units = normalise_vectors(vectors)
    heads: list[int] = []
    also: dict[int, list[Match]] = {}
    for row, match in enumerate(matches):
        close = units[heads] @ units[row] >= near - ROUNDING if heads else np.zeros(0, bool)
        if close.any():
            also.setdefault(heads[int(close.argmax())], []).append(match)
        else:
            heads.append(row)
    return [matches[head]._replace(also=tuple(also.get(head, ()))) for head in heads]


def normalise_vectors(vectors: Float16[np.ndarray, "N E"]) -> Float32[np.ndarray, "N E"]:
    """Return vectors in 32 bits with norm 1 again: rounded to 16 bits, equal ones have products 1e-4 off 1."""
    wide = vectors.astype(np.float32)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)
