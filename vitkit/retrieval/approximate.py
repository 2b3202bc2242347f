"""The index for approximate search: built above a size, measured against exact search, set by that measurement.

Q queries, E embedding.
"""

import time
from collections.abc import Sequence
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from jaxtyping import Float16

from vitkit.retrieval.store import VECTOR, Store

if TYPE_CHECKING:
    import pyarrow
    from lancedb.query import LanceVectorQueryBuilder

ROWS = 100_000  # below that, exact search takes under 0.25 s on two cores
GROWTH = 1  # times the rows that it was built of are new: its partitions have grown out of shape
TOP, QUERIES = 10, 64
GOAL = 0.95  # of the TOP that exact search finds
ROUNDING = 1e-6  # of cosines, and so of distances: of two equal vectors either may be found
PROBES = (8, 16, 32, 64, 128, 256, 512, 1024)  # partitions that are looked into
REFINED = 2  # times as many candidates are compared in full
# Rows of a partition, and partitions at most: 1,000,000 rows of 512 took 2.4 minutes to share out among 256, and more
# than 5 among 1,000. Scalar quantisation, since its 8 bits cost no recall here.
SHARE, MOST = 4096, 1024
NAME, ABOUT = "nearest", "nearest"
PICTURES, CAPTIONS = "line = 0", "line > 0"


Nearest = dict[int, float]  # distances by rows


class Queries(NamedTuple):
    """`rows` are their own, -1 where a query is none of the collection; `among` is the condition on what they find."""

    vectors: Float16[np.ndarray, "Q E"]
    rows: tuple[int, ...]
    among: str = PICTURES


class Measured(NamedTuple):
    """With so many `probes`, the share `recall` of the nearest ten; ms a query, the median, beside exact search."""

    probes: int
    recall: float
    took: float
    exact: float


class Index(NamedTuple):
    """How many rows there were when it was built, in so many seconds, and what was measured for each kind of query.

    Args: fresh: how many vectors came since.
    """

    rows: int
    seconds: float
    measured: dict[str, Measured]
    fresh: int = 0


def ask(
    store: Store, vector: Float16[np.ndarray, " E"], top: int, columns: Sequence[str], where: str, probes: int
) -> "pyarrow.Table":
    """The nearest among the rows for which the condition holds: these columns, _rowid, and _distance, 1 - the cosine.

    Args: probes: 0 for exact search.
    """
    started = cast("LanceVectorQueryBuilder", store.items.search(vector, vector_column_name=VECTOR))
    found = started.distance_type("cosine").limit(top).where(where, prefilter=True)
    found = found.with_row_id(True).select([*columns, "_distance"])
    if not probes:
        return found.bypass_vector_index().to_arrow()
    # Without a maximum all partitions are read at once, needed or not: https://github.com/lance-format/lance/issues/5637
    found = found.minimum_nprobes(probes).maximum_nprobes(probes).refine_factor(REFINED)
    table = found.to_arrow()
    return table if len(table) == top else found.maximum_nprobes(0).to_arrow()


def of(store: Store) -> Index | None:
    """What was measured when the index was built, if there is one."""
    held = store.about.get(ABOUT)
    if not held or not any(index.name == NAME for index in store.items.list_indices()):
        return None
    measured = {kind: Measured(*values) for kind, values in held["measured"].items()}
    return Index(held["rows"], held["seconds"], measured, held["fresh"])


def record_new_vectors(store: Store, fresh: int) -> None:
    """Remember that so many vectors came, which the index's partitions were not made for."""
    if fresh and (index := of(store)):
        store.remember(**{ABOUT: index._replace(fresh=index.fresh + fresh)._asdict()})


def due(store: Store, above: int = ROWS) -> bool:
    """Whether the collection is large enough for an index, and has none, or has outgrown it."""
    rows, index = store.items.count_rows(), of(store)
    return rows >= max(1, above) and (index is None or max(rows - index.rows, index.fresh) >= GROWTH * index.rows)


def build_index(store: Store, queries: dict[str, Queries]) -> Index:
    """Build the index, and find how many partitions each kind of query has to look into."""
    from lancedb.index import Bitmap, IvfSq

    rows, start = store.items.count_rows(), time.perf_counter()
    partitions = max(1, min(rows // SHARE, MOST))
    config = IvfSq(distance_type="cosine", num_partitions=partitions, max_iterations=10, sample_rate=64)
    store.items.create_index(VECTOR, config=config, replace=True, name=NAME)
    store.items.create_index("line", config=Bitmap(), replace=True)  # or else every query reads the column
    seconds = time.perf_counter() - start
    index = Index(rows, seconds, {kind: measure(store, asked, partitions) for kind, asked in queries.items()})
    store.remember(**{ABOUT: index._asdict()})
    return index


def measure(store: Store, queries: Queries, partitions: int) -> Measured:
    """With the fewest probes that reach the goal, or with all partitions."""
    truth, exact = answers(store, queries, 0)
    measured = Measured(0, 0.0, 0.0, exact)
    for probes in (probes for probes in (*PROBES, partitions) if probes <= partitions):
        found, took = answers(store, queries, probes)
        shares = map(shared, found, truth)
        measured = Measured(probes, mean(shares), took, exact)
        if measured.recall >= GOAL:
            break
    return measured


def shared(ours: Nearest, theirs: Nearest) -> float:
    """The share of theirs that we have, or others as near, as equal captions are."""
    furthest = max(theirs.values(), default=0) + ROUNDING
    return sum(distance <= furthest for distance in ours.values()) / max(1, len(theirs))


def answers(store: Store, queries: Queries, probes: int) -> tuple[list[Nearest], float]:
    """The nearest ten of each query, itself left out, and ms a query."""
    found, times = [], []
    for vector, own in zip(queries.vectors, queries.rows, strict=True):
        start = time.perf_counter()
        table = ask(store, vector, TOP + 1, ["id"], queries.among, probes)
        times.append(1e3 * (time.perf_counter() - start))
        rows = zip(table["_rowid"].to_pylist(), table["_distance"].to_pylist(), strict=True)
        found.append(dict([one for one in rows if one[0] != own][:TOP]))
    return found, median(times)
