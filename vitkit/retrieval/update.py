"""Updates that bring a collection in line with its folders."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data.omissions import Omissions
from vitkit.data.sources.source import parse_patterns
from vitkit.retrieval.approximate import (
    CAPTIONS,
    PICTURES,
    QUERIES,
    Index,
    Queries,
    build_index,
    count_new_vectors,
    needs_index,
)
from vitkit.retrieval.database_errors import explain_read_errors, explain_write_errors
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.lock import lock_database
from vitkit.retrieval.plan import make_plan
from vitkit.retrieval.scan import Scan, resolve_folders, scan_folders
from vitkit.retrieval.store import ITEMS, UNREADABLE, VECTOR, Store, get_vectors
from vitkit.retrieval.writer import IndexCounts, IndexJob, IndexReading
from vitkit.support.errors import format_count
from vitkit.support.folder_lock import LOCK

FILES = (LOCK, f"{ITEMS}.lance", f"{UNREADABLE}.lance")  # prefixes of a collection's files: a rank's lock is LOCK.RANK


class IndexSummary(NamedTuple):
    """The counts of an update.

    Pictures (`encoded`) and captions that were embedded, captions that were truncated (`cut`), pictures whose content
    was in the collection (`reused`), pictures that were not read, removed files, and files that could not be read.
    """

    encoded: int
    captions: int
    cut: int
    reused: int
    unchanged: int
    removed: int
    unreadable: int
    omissions: Omissions
    notes: tuple[str, ...]
    seconds: float
    approximate: Index | None


def update_collection(
    path: Path,
    folders: str | Path | Iterable[str | Path],
    open_embedder: Callable[[], Embedder],
    embed: Callable[[IndexJob], IndexCounts],
    reading: IndexReading,
    rehash: bool,
    above: int,
    columns: tuple[str, str] | None,
    exclude: str | Sequence[str],
) -> IndexSummary:
    """Bring a collection up to date. Args: as for Collection.index; the model is opened after the other checks."""
    start = time.perf_counter()
    reading.check()
    roots, patterns = resolve_folders(folders), parse_patterns(exclude)
    check_database_folder(path)
    model = open_embedder()
    path.mkdir(parents=True, exist_ok=True)
    with lock_database(path):
        store = open_store(path, model)
        scan = scan_folders(roots, os.path.realpath(path), columns, patterns)
        with explain_read_errors(path):
            snapshot = store.read_snapshot()
        plan = make_plan(scan, snapshot, roots, rehash)
        counts = embed(IndexJob(str(path), model, plan.entries, snapshot, reading))
        store.refresh()
        with explain_write_errors(path):
            store.delete_entries(plan.gone, snapshot)
            if plan.entries or plan.gone:
                store.compact()
            count_new_vectors(store, counts.encoded + counts.captions)
            index = build_index(store, make_queries(store, model)) if needs_index(store, above) else None
        notes = (*format_missing_folders(store), *counts.notes)
    return IndexSummary(
        counts.encoded,
        counts.captions,
        counts.cut,
        counts.reused,
        plan.unchanged,
        len(plan.gone),
        counts.failed + plan.unreadable,
        scan.omissions,
        notes,
        time.perf_counter() - start,
        index,
    )


def remove_folders(path: Path, folders: str | Path | Iterable[str | Path]) -> int:
    """Remove the entries of folders, which need not exist, from a collection; return the number of files."""
    roots = resolve_folders(folders, gone=True)
    with lock_database(path), explain_write_errors(path):
        store = Store(path)
        snapshot = store.read_snapshot()
        gone = make_plan(Scan({}, (), Omissions()), snapshot, roots).gone
        store.delete_entries(gone, snapshot)
        store.compact()
    return len(gone)


def format_missing_folders(store: Store) -> list[str]:
    """Return a line for each indexed folder that no longer exists: pictures of a renamed one would be found twice."""
    missing = {root: count for root, count in sorted(store.count_pictures().items()) if is_missing(root)}
    hint = "vitkit index --forget removes its pictures"
    return [
        f"{format_count(count, 'pictures')} of {root}, which no longer exists; {hint}"
        for root, count in missing.items()
    ]


def is_missing(root: str) -> bool:
    """Return whether an indexed path no longer exists; False for other sources and for the names of several shards."""
    return os.path.isabs(root) and "{" not in root and not os.path.exists(root)


def check_database_folder(path: Path) -> None:
    """Raise a ValueError if a path is neither new, nor empty, nor a collection."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"db must be a folder, got the file {path}")
    if Store.exists(path) or not path.is_dir():
        return
    if others := sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(FILES)):
        raise ValueError(f"db must be a new folder or a collection, got {path}, which holds {others[0]}")


def open_store(path: Path, model: Embedder) -> Store:
    """Open or create a collection. Raises: ValueError if it was embedded with another model."""
    if Store.exists(path):
        check_model(model, store := Store(path), path)
        place = {"model": model.source, "stamps": model.stamps}
        if place != {key: store.metadata.get(key) for key in place}:
            store.update_metadata(**place)
        return store
    metadata = {
        "model": model.source,
        "stamps": model.stamps,
        "fingerprint": model.compute_fingerprint(),
        "probe": model.embed_probe().tolist(),
    }
    return Store.create(path, model.outputs, metadata)


def check_model(model: Embedder, store: Store, path: Path) -> Embedder:
    """Return the model. Raises: ValueError if the collection was embedded with another one.

    Its weights are hashed, and a picture and a text embedded, unless its files are those of the last `index`.
    """
    metadata = store.metadata
    if model.stamps and (model.source, model.stamps) == (metadata["model"], metadata.get("stamps")):
        return model
    if same := model.compute_fingerprint() == metadata["fingerprint"]:
        same = model.matches_probe(np.array(metadata["probe"], np.float32))
    if not same:
        raise ValueError(
            f"model must be the one that {path} was made with, from {metadata['model']}; got another, from "
            f"{model.source}; their embeddings cannot be compared: take another --db"
        )
    return model


def make_queries(store: Store, model: Embedder) -> dict[str, Queries]:
    """Return queries to measure an index with: rows of the collection, and texts, which lie apart from pictures."""
    from open_clip import IMAGENET_CLASSNAMES

    all_rows = store.items.search().where(PICTURES).with_row_id(True).select(["line"]).limit(None).to_arrow()["_rowid"]
    sample = np.random.default_rng(0).choice(len(all_rows), min(QUERIES, len(all_rows)), replace=False)
    rows = store.items.take_row_ids(all_rows.take(sample).to_pylist()).with_row_id().select([VECTOR]).to_arrow()
    texts, _ = model.embed_texts([f"a photo of a {name}" for name in IMAGENET_CLASSNAMES[:: 1000 // QUERIES]])
    pictures = Queries(get_vectors(rows), tuple(rows["_rowid"].to_pylist()))
    queries = {"picture": pictures, "text": Queries(texts, (-1,) * len(texts))}
    if store.items.count_rows(CAPTIONS):
        queries |= {f"{kind} for captions": group._replace(target=CAPTIONS) for kind, group in queries.items()}
    return queries
