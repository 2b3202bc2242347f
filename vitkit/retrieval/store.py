"""The tables of a collection, in LanceDB. E embedding.

`items` has a row for each picture and for each of its captions; `unreadable` has one for each file that could not be
read. Every change is one commit, which is there whole or not at all, whenever the process is killed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float16

from vitkit.retrieval.scan import Stamp
from vitkit.support.extras import require_package

if TYPE_CHECKING:
    import lancedb
    import pyarrow

ITEMS, UNREADABLE = "items", "unreadable"
VECTOR, ABOUT = "vector", "vitkit"  # the column that carries, and the name of, what the table remembers
IDS = 1000  # named in one condition
KEPT = timedelta(hours=1)  # an older version may be what another process is reading


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


class Stored(NamedTuple):
    """What is remembered of an entry."""

    file: bytes
    stamp: Stamp
    root: str


class Known(NamedTuple):
    """What is stored at the start of a run: entries by their ids, and which row of that version holds a hash."""

    items: dict[str, Stored]
    failures: dict[str, Stored]
    rows: dict[str, int]
    version: int


class Held(NamedTuple):
    """What need not be computed again."""

    vector: np.ndarray
    width: int
    height: int


class Store:
    """An open database. Its tables are opened here, so it is made in the process that uses it."""

    def __init__(self, path: str | Path) -> None:
        require_package("lancedb", "a collection", "retrieval")
        import lancedb

        self.path = str(path)
        self.database = lancedb.connect(self.path)
        tables = {name: self.database.open_table(name) for name in self.database.list_tables().tables}
        if not fits(tables):
            raise ValueError(f"db must be of this release, got {path} of another layout; index into another --db")
        self.items, self.unreadable = tables[ITEMS], tables[UNREADABLE]

    @classmethod
    def create(cls, path: Path, outputs: int, about: Mapping[str, object]) -> "Store":
        """Also what a process began that was killed at it."""
        require_package("lancedb", "a collection", "retrieval")
        import lancedb

        database = lancedb.connect(str(path))
        items, unreadable = schemas(outputs, about)
        database.create_table(UNREADABLE, schema=unreadable, exist_ok=True)
        database.create_table(ITEMS, schema=items, exist_ok=True)  # last: with it there is a collection
        return cls(path)

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether there is a collection: what a process was killed at making is none."""
        return any((path / f"{ITEMS}.lance" / "_versions").glob("*.manifest"))

    def latest(self) -> None:
        """What is asked from now on is the tables as they are now."""
        self.items.checkout_latest()
        self.unreadable.checkout_latest()

    @property
    def about(self) -> dict[str, Any]:
        return json.loads(self.items.schema.field(VECTOR).metadata[ABOUT.encode()])

    def remember(self, **changes: object) -> None:
        text = json.dumps({**self.about, **changes})
        self.items.update_field_metadata({"path": VECTOR, "metadata": {ABOUT: text}})

    def known(self) -> Known:
        table = self.items.search().with_row_id(True).select(["id", "line", "hash", *STAMP, "file", "root"]).limit(None)
        held = table.to_arrow()
        first = held["line"].to_numpy() == 0
        rows = dict(zip(held["hash"].to_pylist(), held["_rowid"].to_pylist(), strict=True))
        failed = self.unreadable.search().select(["id", *STAMP, "file", "root"]).limit(None).to_arrow()
        return Known(remembered(held.filter(first)), remembered(failed), rows, self.items.version)

    def roots(self) -> dict[str, int]:
        """How many pictures there are of each folder that was indexed."""
        table = self.items.search().where("line = 0").select(["root"]).limit(None).to_arrow()
        return {row["values"]: row["counts"] for row in table["root"].value_counts().to_pylist()}

    def held(self, hashes: Iterable[str], known: Known) -> dict[str, Held]:
        """From the version that is known: rows may have been replaced since."""
        if not (rows := [known.rows[one] for one in sorted(set(hashes))]):
            return {}
        past = self.database.open_table(ITEMS)
        past.checkout(known.version)
        table = past.take_row_ids(rows).select(["hash", "width", "height", VECTOR]).to_arrow()
        columns = (table[name].to_pylist() for name in ("hash", "width", "height"))
        pairs = zip(zip(*columns, strict=True), matrix(table), strict=True)
        return {hashed: Held(vector, width, height) for (hashed, width, height), vector in pairs}

    def commit(self, items: Sequence[Item], vectors: Float16[np.ndarray, "N E"], known: Known) -> None:
        """Entries, whole: a picture and all of its captions; what else was stored of them goes, in the same commit."""
        again = {item.id for item in items if item.id in known.items}
        fresh = [row for row, item in enumerate(items) if item.id not in again]
        if fresh:
            self.items.add(self.rows([items[row] for row in fresh], vectors[fresh]))
        if again:
            old = [row for row, item in enumerate(items) if item.id in again]
            merge = self.items.merge_insert(["id", "line"]).when_matched_update_all().when_not_matched_insert_all()
            merge = merge.when_not_matched_by_source_delete(one_of(again))
            merge.execute(self.rows([items[row] for row in old], vectors[old]))
        remove(self.unreadable, {item.id for item in items} & known.failures.keys())

    def refuse(self, failures: Sequence[Failure], known: Known) -> None:
        """Remember what could not be read, then forget what was known of it."""
        import pyarrow

        if not failures:
            return
        columns = {name: [failure._asdict()[name] for failure in failures] for name in ("id", "root", "path", "file")}
        columns |= {"reason": [failure.reason for failure in failures], **stamps(failures)}
        table = pyarrow.table(columns, schema=self.unreadable.schema)
        merge = self.unreadable.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(table)
        remove(self.items, {failure.id for failure in failures} & known.items.keys())

    def forget(self, ids: Iterable[str], known: Known) -> None:
        gone = set(ids)
        remove(self.items, gone & known.items.keys())
        remove(self.unreadable, gone & known.failures.keys())

    def rows(self, items: Sequence[Item], vectors: Float16[np.ndarray, "N E"]) -> "pyarrow.Table":
        import pyarrow

        plain = ("id", "line", "root", "path", "file", "caption", "hash", "width", "height")
        columns: dict[str, Any] = {name: [getattr(item, name) for item in items] for name in plain}
        columns |= stamps(items)
        flat = pyarrow.array(np.ascontiguousarray(vectors).ravel())
        columns[VECTOR] = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        return pyarrow.table(columns, schema=self.items.schema)

    def tidy(self, kept: timedelta = KEPT) -> None:
        """Join small files, take new rows into the indexes, and drop versions older than `kept`."""
        self.items.optimize(cleanup_older_than=kept)
        self.unreadable.optimize(cleanup_older_than=kept)


STAMP = ("size", "mtime", "beside")


def schemas(outputs: int, about: Mapping[str, object]) -> "tuple[pyarrow.Schema, pyarrow.Schema]":
    import pyarrow as pa

    text, number = pa.string(), pa.int32()
    place = [("id", text), ("root", text), ("path", text), ("file", pa.binary())]
    stamp = [("size", pa.int64()), ("mtime", pa.timestamp("ns")), ("beside", text)]
    own = [("line", number), ("caption", text), ("hash", text), ("width", number), ("height", number)]
    vector = pa.field(VECTOR, pa.list_(pa.float16(), outputs), metadata={ABOUT: json.dumps(about)})
    return pa.schema([*place, *stamp, *own]).append(vector), pa.schema([*place, *stamp, ("reason", text)])


def fits(tables: "Mapping[str, lancedb.table.Table]") -> bool:
    """Whether they are what `create` makes."""
    if not {ITEMS, UNREADABLE} <= tables.keys() or VECTOR not in tables[ITEMS].schema.names:
        return False
    outputs = getattr(tables[ITEMS].schema.field(VECTOR).type, "list_size", 0)
    return (tables[ITEMS].schema, tables[UNREADABLE].schema) == schemas(outputs, {})


def stamps(rows: Sequence[Item | Failure]) -> dict[str, Any]:
    import pyarrow as pa

    sizes, times, beside = zip(*(row.stamp for row in rows), strict=True)
    return {"size": sizes, "mtime": pa.array(times, pa.int64()).cast(pa.timestamp("ns")), "beside": beside}


def remembered(table: "pyarrow.Table") -> dict[str, Stored]:
    import pyarrow as pa

    times = table["mtime"].cast(pa.int64()).to_pylist()
    columns = (table[name].to_pylist() for name in ("id", "file", "size", "beside", "root"))
    return {
        id: Stored(file, Stamp(size, mtime, beside), root)
        for (id, file, size, beside, root), mtime in zip(zip(*columns, strict=True), times, strict=True)
    }


def matrix(table: "pyarrow.Table") -> Float16[np.ndarray, "N E"]:
    """The vectors of a table."""
    column = table[VECTOR].combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), column.type.list_size)


def one_of(ids: Iterable[str]) -> str:
    """Ids are hexadecimal: nobody's text is in the condition."""
    return "id in ('" + "', '".join(sorted(ids)) + "')"


def remove(table: "lancedb.table.Table", ids: Iterable[str]) -> None:
    gone = sorted(ids)
    for start in range(0, len(gone), IDS):
        table.delete(one_of(gone[start : start + IDS]))
