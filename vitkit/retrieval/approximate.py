"""The index for approximate search: built for large collections, its recall measured against exact search.

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

MIN_ROWS = 100_000  # with fewer, exact search takes under 0.25 s on two cores
GROWTH = 1  # new rows over indexed rows at which the index is rebuilt: its partitions no longer fit the data
TOP, QUERIES = 10, 64
MIN_RECALL = 0.95  # of the TOP nearest rows of exact search
ROUNDING = 1e-6  # of cosines, and so of distances: equal vectors may be ranked in any order
PROBES = (8, 16, 32, 64, 128, 256, 512, 1024)  # numbers of partitions that a query may search
REFINE_FACTOR = 2  # times as many candidates are compared without quantisation
# k-means of 1,000,000 rows of 512 numbers took 2.4 minutes with 256 partitions, more than 5 with 1,000.
# Scalar quantisation, since its 8 bits cost no recall here.
PARTITION_ROWS, MAX_PARTITIONS = 4096, 1024
INDEX = "nearest"  # its name in the table, and the key of its figures in the metadata
PICTURES, CAPTIONS = "line = 0", "line > 0"


Distances = dict[int, float]  # cosine distances by row id


class Queries(NamedTuple):
    """Embeddings to search with. Args: rows: their row ids, -1 for none. target: condition on the rows searched."""

    vectors: Float16[np.ndarray, "Q E"]
    rows: tuple[int, ...]
    target: str = PICTURES


class Measurement(NamedTuple):
    """The recall@10 with `probes` partitions, and the median ms of a query in approximate and in exact search."""

    probes: int
    recall: float
    milliseconds: float
    exact_milliseconds: float


class Index(NamedTuple):
    """The rows that an index was built of, the seconds it took, and the measurement of each kind of query.

    Args: fresh: number of vectors added since.
    """

    rows: int
    seconds: float
    measurements: dict[str, Measurement]
    fresh: int = 0


def search_rows(
    store: Store, vector: Float16[np.ndarray, " E"], top: int, columns: Sequence[str], where: str, probes: int
) -> "pyarrow.Table":
    """Return the nearest of the rows that meet a condition: `columns`, _rowid, and _distance (1 - cosine).

    Args: probes: 0 for exact search.
    """
    builder = cast("LanceVectorQueryBuilder", store.items.search(vector, vector_column_name=VECTOR))
    query = builder.distance_type("cosine").limit(top).where(where, prefilter=True)
    query = query.with_row_id(True).select([*columns, "_distance"])
    if not probes:
        return query.bypass_vector_index().to_arrow()
    # Without a maximum all partitions are read at once, needed or not: https://github.com/lance-format/lance/issues/5637
    query = query.minimum_nprobes(probes).maximum_nprobes(probes).refine_factor(REFINE_FACTOR)
    table = query.to_arrow()
    return table if len(table) == top else query.maximum_nprobes(0).to_arrow()


def read_index(store: Store) -> Index | None:
    """Return the figures of the collection's index; None without an index."""
    figures = store.metadata.get(INDEX)
    if not figures or not any(index.name == INDEX for index in store.items.list_indices()):
        return None
    measurements = {kind: Measurement(*values) for kind, values in figures["measured"].items()}
    return Index(figures["rows"], figures["seconds"], measurements, figures["fresh"])


def write_index(store: Store, index: Index) -> None:
    figures = {"rows": index.rows, "seconds": index.seconds, "measured": index.measurements, "fresh": index.fresh}
    store.update_metadata(**{INDEX: figures})


def count_new_vectors(store: Store, count: int) -> None:
    """Add to the number of vectors that came after the index was built."""
    if count and (index := read_index(store)):
        write_index(store, index._replace(fresh=index.fresh + count))


def needs_index(store: Store, min_rows: int = MIN_ROWS) -> bool:
    """Return whether a collection is large enough for an index and has none, or has outgrown it."""
    rows, index = store.items.count_rows(), read_index(store)
    return rows >= max(1, min_rows) and (index is None or max(rows - index.rows, index.fresh) >= GROWTH * index.rows)


def build_index(store: Store, queries: dict[str, Queries]) -> Index:
    """Build the index, and choose the number of probes for each kind of query."""
    from lancedb.index import Bitmap, IvfSq

    rows, start = store.items.count_rows(), time.perf_counter()
    partitions = max(1, min(rows // PARTITION_ROWS, MAX_PARTITIONS))
    config = IvfSq(distance_type="cosine", num_partitions=partitions, max_iterations=10, sample_rate=64)
    store.items.create_index(VECTOR, config=config, replace=True, name=INDEX)
    store.items.create_index("line", config=Bitmap(), replace=True)  # without it every query reads the column
    seconds = time.perf_counter() - start
    index = Index(rows, seconds, {kind: choose_probes(store, group, partitions) for kind, group in queries.items()})
    write_index(store, index)
    return index


def choose_probes(store: Store, queries: Queries, partitions: int) -> Measurement:
    """Return the measurement with the fewest probes that reach MIN_RECALL, else with all partitions."""
    truth, exact_milliseconds = find_neighbours(store, queries, 0)
    measurement = Measurement(0, 0.0, 0.0, exact_milliseconds)
    for probes in (probes for probes in (*PROBES, partitions) if probes <= partitions):
        neighbours, milliseconds = find_neighbours(store, queries, probes)
        recalls = map(compute_recall, neighbours, truth)
        measurement = Measurement(probes, mean(recalls), milliseconds, exact_milliseconds)
        if measurement.recall >= MIN_RECALL:
            break
    return measurement


def compute_recall(neighbours: Distances, truth: Distances) -> float:
    """Return the recall of neighbours. Any row as near as the furthest true one counts, as equal captions are."""
    furthest = max(truth.values(), default=0) + ROUNDING
    return sum(distance <= furthest for distance in neighbours.values()) / max(1, len(truth))


def find_neighbours(store: Store, queries: Queries, probes: int) -> tuple[list[Distances], float]:
    """Return the TOP nearest rows of each query, itself excluded, and the median ms of a query."""
    neighbours, times = [], []
    for vector, query_row in zip(queries.vectors, queries.rows, strict=True):
        start = time.perf_counter()
        table = search_rows(store, vector, TOP + 1, ["id"], queries.target, probes)
        times.append(1e3 * (time.perf_counter() - start))
        pairs = zip(table["_rowid"].to_pylist(), table["_distance"].to_pylist(), strict=True)
        neighbours.append(dict([(row, distance) for row, distance in pairs if row != query_row][:TOP]))
    return neighbours, median(times)
