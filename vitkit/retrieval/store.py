"""The tables of a collection, in LanceDB. N rows, E embedding.

`items` has a row for each picture and for each of its captions; `unreadable` has one for each file that could not be
read. Every change is one commit: it is there whole or not at all, whenever the process is killed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float16

from vitkit.retrieval.scan import Stamp

if TYPE_CHECKING:
    import lancedb
    import pyarrow

ITEMS, UNREADABLE = "items", "unreadable"
VECTOR, METADATA = "vector", "vitkit"  # the column whose field metadata hold the collection's, and their key
IDS = 1000  # in one condition
MIN_AGE = timedelta(hours=1)  # of versions that are deleted: another process may still read a younger one


class Item(NamedTuple):
    """A picture (line 0), or a caption of it (line 1, 2, ...)."""

    id: str
    root: str
    path: str
    file: bytes
    line: int
    caption: str
    hash: str
    stamp: Stamp
    width: int
    height: int


class Failure(NamedTuple):
    id: str
    root: str
    path: str
    file: bytes
    stamp: Stamp
    reason: str


class StoredEntry(NamedTuple):
    """The file, stamp and root under which an entry was stored."""

    file: bytes
    stamp: Stamp
    root: str


class Snapshot(NamedTuple):
    """The content of a store at the start of a run: entries by their ids, rows of that version by their hashes."""

    items: dict[str, StoredEntry]
    failures: dict[str, StoredEntry]
    rows: dict[str, int]
    version: int


class StoredVector(NamedTuple):
    """The embedding of a picture or a caption, and the size of the picture."""

    vector: np.ndarray
    width: int
    height: int


class Store:
    """An open database. It must be made in the process that uses it, since it opens the tables."""

    def __init__(self, path: str | Path) -> None:
        import lancedb

        self.path = str(path)
        self.database = lancedb.connect(self.path)
        tables = {name: self.database.open_table(name) for name in self.database.list_tables().tables}
        if not has_layout(tables):
            raise ValueError(f"db must have this release's tables, got others in {path}; index into another --db")
        self.items, self.unreadable = tables[ITEMS], tables[UNREADABLE]

    @classmethod
    def create(cls, path: Path, outputs: int, metadata: Mapping[str, object]) -> "Store":
        """Create the tables, also those that a killed process left out."""
        import lancedb

        database = lancedb.connect(str(path))
        items, unreadable = make_schemas(outputs, metadata)
        database.create_table(UNREADABLE, schema=unreadable, exist_ok=True)
        database.create_table(ITEMS, schema=items, exist_ok=True)  # last: `exists` looks for it
        return cls(path)

    @staticmethod
    def exists(path: Path) -> bool:
        """Return whether there is a complete collection."""
        return any((path / f"{ITEMS}.lance" / "_versions").glob("*.manifest"))

    def refresh(self) -> None:
        """Switch to the latest version of the tables."""
        self.items.checkout_latest()
        self.unreadable.checkout_latest()

    @property
    def metadata(self) -> dict[str, Any]:
        return json.loads(self.items.schema.field(VECTOR).metadata[METADATA.encode()])

    def update_metadata(self, **changes: object) -> None:
        text = json.dumps({**self.metadata, **changes})
        self.items.update_field_metadata({"path": VECTOR, "metadata": {METADATA: text}})

    def read_snapshot(self) -> Snapshot:
        query = self.items.search().with_row_id(True).select(["id", "line", "hash", *STAMP, "file", "root"])
        items = query.limit(None).to_arrow()
        pictures = items.filter(items["line"].to_numpy() == 0)
        rows = dict(zip(items["hash"].to_pylist(), items["_rowid"].to_pylist(), strict=True))
        failures = self.unreadable.search().select(["id", *STAMP, "file", "root"]).limit(None).to_arrow()
        return Snapshot(read_entries(pictures), read_entries(failures), rows, self.items.version)

    def count_pictures(self) -> dict[str, int]:
        """Return the number of pictures of each folder that was indexed."""
        table = self.items.search().where("line = 0").select(["root"]).limit(None).to_arrow()
        return {row["values"]: row["counts"] for row in table["root"].value_counts().to_pylist()}

    def read_vectors(self, hashes: Iterable[str], snapshot: Snapshot) -> dict[str, StoredVector]:
        """Return the vectors of hashes from the snapshot's version, as rows may have been replaced since."""
        if not (rows := [snapshot.rows[key] for key in sorted(set(hashes))]):
            return {}
        past = self.database.open_table(ITEMS)
        past.checkout(snapshot.version)
        table = past.take_row_ids(rows).select(["hash", "width", "height", VECTOR]).to_arrow()
        columns = (table[name].to_pylist() for name in ("hash", "width", "height"))
        pairs = zip(zip(*columns, strict=True), get_vectors(table), strict=True)
        return {key: StoredVector(vector, width, height) for (key, width, height), vector in pairs}

    def commit_items(self, items: Sequence[Item], vectors: Float16[np.ndarray, "N E"], snapshot: Snapshot) -> None:
        """Store whole entries, each a picture with all of its captions. Their old rows go in the same commit."""
        old_ids = {item.id for item in items if item.id in snapshot.items}
        new = [row for row, item in enumerate(items) if item.id not in old_ids]
        if new:
            self.items.add(self.make_table([items[row] for row in new], vectors[new]))
        if old_ids:
            old = [row for row, item in enumerate(items) if item.id in old_ids]
            merge = self.items.merge_insert(["id", "line"]).when_matched_update_all().when_not_matched_insert_all()
            merge = merge.when_not_matched_by_source_delete(match_ids(old_ids))
            merge.execute(self.make_table([items[row] for row in old], vectors[old]))
        delete_ids(self.unreadable, {item.id for item in items} & snapshot.failures.keys())

    def commit_failures(self, failures: Sequence[Failure], snapshot: Snapshot) -> None:
        """Store the entries that could not be read, then delete their old items."""
        import pyarrow

        if not failures:
            return
        columns = {name: [failure._asdict()[name] for failure in failures] for name in ("id", "root", "path", "file")}
        columns |= {"reason": [failure.reason for failure in failures], **make_stamp_columns(failures)}
        table = pyarrow.table(columns, schema=self.unreadable.schema)
        merge = self.unreadable.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(table)
        delete_ids(self.items, {failure.id for failure in failures} & snapshot.items.keys())

    def delete_entries(self, ids: Iterable[str], snapshot: Snapshot) -> None:
        ids = set(ids)
        delete_ids(self.items, ids & snapshot.items.keys())
        delete_ids(self.unreadable, ids & snapshot.failures.keys())

    def make_table(self, items: Sequence[Item], vectors: Float16[np.ndarray, "N E"]) -> "pyarrow.Table":
        import pyarrow

        names = ("id", "line", "root", "path", "file", "caption", "hash", "width", "height")
        columns: dict[str, Any] = {name: [getattr(item, name) for item in items] for name in names}
        columns |= make_stamp_columns(items)
        flat = pyarrow.array(np.ascontiguousarray(vectors).ravel())
        columns[VECTOR] = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        return pyarrow.table(columns, schema=self.items.schema)

    def compact(self, min_age: timedelta = MIN_AGE) -> None:
        """Join small files, add new rows to the indexes, and delete versions older than `min_age`."""
        self.items.optimize(cleanup_older_than=min_age)
        self.unreadable.optimize(cleanup_older_than=min_age)


STAMP = ("size", "mtime", "beside")  # columns of a `Stamp`


def make_schemas(outputs: int, metadata: Mapping[str, object]) -> "tuple[pyarrow.Schema, pyarrow.Schema]":
    import pyarrow as pa

    text, number = pa.string(), pa.int32()
    place = [("id", text), ("root", text), ("path", text), ("file", pa.binary())]
    stamp = [("size", pa.int64()), ("mtime", pa.timestamp("ns")), ("beside", text)]
    item = [("line", number), ("caption", text), ("hash", text), ("width", number), ("height", number)]
    vector = pa.field(VECTOR, pa.list_(pa.float16(), outputs), metadata={METADATA: json.dumps(metadata)})
    return pa.schema([*place, *stamp, *item]).append(vector), pa.schema([*place, *stamp, ("reason", text)])


def has_layout(tables: "Mapping[str, lancedb.table.Table]") -> bool:
    """Return whether the tables are those that `Store.create` makes."""
    if not {ITEMS, UNREADABLE} <= tables.keys() or VECTOR not in tables[ITEMS].schema.names:
        return False
    outputs = getattr(tables[ITEMS].schema.field(VECTOR).type, "list_size", 0)
    return (tables[ITEMS].schema, tables[UNREADABLE].schema) == make_schemas(outputs, {})


def make_stamp_columns(rows: Sequence[Item | Failure]) -> dict[str, Any]:
    import pyarrow as pa

    sizes, times, captions = zip(*(row.stamp for row in rows), strict=True)
    return {"size": sizes, "mtime": pa.array(times, pa.int64()).cast(pa.timestamp("ns")), "beside": captions}


def read_entries(table: "pyarrow.Table") -> dict[str, StoredEntry]:
    import pyarrow as pa

    times = table["mtime"].cast(pa.int64()).to_pylist()
    columns = (table[name].to_pylist() for name in ("id", "file", "size", "beside", "root"))
    return {
        id: StoredEntry(file, Stamp(size, mtime, captions), root)
        for (id, file, size, captions, root), mtime in zip(zip(*columns, strict=True), times, strict=True)
    }


def get_vectors(table: "pyarrow.Table") -> Float16[np.ndarray, "N E"]:
    """Return the vectors of a table."""
    column = table[VECTOR].combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), column.type.list_size)


def match_ids(ids: Iterable[str]) -> str:
    """Return a condition on ids. They are hexadecimal, so no user's text is in it."""
    return "id in ('" + "', '".join(sorted(ids)) + "')"


def delete_ids(table: "lancedb.table.Table", ids: Iterable[str]) -> None:
    ids = sorted(ids)
    for start in range(0, len(ids), IDS):
        table.delete(match_ids(ids[start : start + IDS]))
