"""Bringing a collection up to date with its folders."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data.omissions import Omissions
from vitkit.retrieval.approximate import (
    CAPTIONS,
    PICTURES,
    QUERIES,
    Index,
    Queries,
    build_index,
    due,
    record_new_vectors,
)
from vitkit.retrieval.database_errors import readable, writing
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.lock import NAME, lock_database
from vitkit.retrieval.plan import plan
from vitkit.retrieval.scan import FORGET, Scan, absolute, scan
from vitkit.retrieval.store import ITEMS, UNREADABLE, VECTOR, Store, matrix
from vitkit.retrieval.writer import Counts, IndexReading, Job

OWN = (NAME, f"{ITEMS}.lance", f"{UNREADABLE}.lance")  # beginnings: a rank's lock is NAME.RANK


class Indexed(NamedTuple):
    """What was done.

    Pictures and captions that the model embedded, captions that lost their ends, pictures that were read but whose
    content was known, pictures that were not even read, rows of files that are gone, and files that cannot be read.
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


def run(
    path: Path,
    folders: str | Path | Iterable[str | Path],
    embedder: Callable[[], Embedder],
    embed: Callable[[Job], Counts],
    reading: IndexReading,
    rehash: bool,
    above: int,
) -> Indexed:
    """Args: as in Collection.index; the embedder is made once the rest is in order."""
    start = time.perf_counter()
    reading.check()
    roots = absolute(folders)
    claimed(path)
    model = embedder()
    path.mkdir(parents=True, exist_ok=True)
    with lock_database(path):
        store = begun(path, model)
        listing = scan(roots, os.path.realpath(path))
        with readable(path):
            known = store.known()
        planned = plan(listing, known, roots, rehash)
        counts = embed(Job(str(path), model, planned.todo, known, reading))
        store.latest()
        with writing(path):
            store.forget(planned.gone, known)
            if planned.todo or planned.gone:
                store.tidy()
            record_new_vectors(store, counts.encoded + counts.captions)
            index = build_index(store, queries(store, model)) if due(store, above) else None
        notes = (*absent(store), *counts.notes)
    failed, done = counts.failed + planned.failing, (counts.encoded, counts.captions, counts.cut, counts.reused)
    kept = (planned.unchanged, len(planned.gone), failed)
    return Indexed(*done, *kept, listing.omissions, notes, time.perf_counter() - start, index)


def forget(path: Path, folders: str | Path | Iterable[str | Path]) -> int:
    """Take out what was indexed below folders, whether they exist or not; gives back of how many files."""
    roots = absolute(folders, gone=True)
    with lock_database(path), writing(path):
        store = Store(path)
        gone = plan(Scan({}, (), Omissions()), known := store.known(), roots).gone
        store.forget(gone, known)
        store.tidy()
    return len(gone)


def absent(store: Store) -> list[str]:
    """A line for each folder of the collection that is not there: a renamed one's pictures would be found twice."""
    lost = {root: count for root, count in sorted(store.roots().items()) if is_lost(root)}
    return [f"{count:,} pictures are of {root}, which is not there, {FORGET}" for root, count in lost.items()]


def is_lost(root: str) -> bool:
    """Return whether a path that was indexed is not there; names of other sources and of several shards are none."""
    return os.path.isabs(root) and "{" not in root and not os.path.exists(root)


def claimed(path: Path) -> None:
    """Raises: ValueError where something else is."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"db must be a folder, got the file {path}")
    if Store.exists(path) or not path.is_dir():
        return
    if others := sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(OWN)):
        raise ValueError(f"db must be a new folder or a collection, got {path}, which holds {others[0]}")


def begun(path: Path, model: Embedder) -> Store:
    """The collection, which may be new. Raises: ValueError if it was embedded with another model."""
    if Store.exists(path):
        agreeing(model, store := Store(path), path)
        if store.about["model"] != model.place:
            store.remember(model=model.place)
        return store
    told = {"model": model.place, "fingerprint": model.fingerprint(), "probe": model.probe().tolist()}
    return Store.create(path, model.outputs, told)


def agreeing(model: Embedder, store: Store, path: Path) -> Embedder:
    """The model. Raises: ValueError if it is not the collection's."""
    about = store.about
    if same := model.fingerprint() == about["fingerprint"]:
        same = model.agrees(np.array(about["probe"], np.float32))
    if not same:
        raise ValueError(
            f"model must be the one that {path} was made with, from {about['model']}; got another, from {model.place}; "
            "their vectors do not compare: take another --db"
        )
    return model


def queries(store: Store, model: Embedder) -> dict[str, Queries]:
    """To measure an index with: rows of the collection, and texts, which lie elsewhere than pictures."""
    from open_clip import IMAGENET_CLASSNAMES

    all_rows = store.items.search().where(PICTURES).with_row_id(True).select(["line"]).limit(None).to_arrow()["_rowid"]
    places = np.random.default_rng(0).choice(len(all_rows), min(QUERIES, len(all_rows)), replace=False)
    rows = store.items.take_row_ids(all_rows.take(places).to_pylist()).with_row_id().select([VECTOR]).to_arrow()
    texts, _ = model.texts([f"a photo of a {name}" for name in IMAGENET_CLASSNAMES[:: 1000 // QUERIES]])
    pictures = Queries(matrix(rows), tuple(rows["_rowid"].to_pylist()))
    asked = {"picture": pictures, "text": Queries(texts, (-1,) * len(texts))}
    if store.items.count_rows(CAPTIONS):
        asked |= {f"{kind} for captions": one._replace(among=CAPTIONS) for kind, one in asked.items()}
    return asked
