"""Pictures and what is said of them, in a table: CSV, TSV, JSONL or Parquet; paths are relative to its folder."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from vitkit.data.annotations.labels import labelled
from vitkit.data.sources.source import Files, Source
from vitkit.support.errors import few, near
from vitkit.support.extras import require
from vitkit.support.progress import progress


class TableRows(NamedTuple):
    """What a table says of each picture, and what is wrong with the table."""

    places: list[str]
    names: list[object]
    cells: list[object]
    problems: list[str]


def open_table(path: Path, columns: tuple[str, str]) -> Source:
    """The pictures in a table, whose format its suffix tells.

    A CSV may be separated by commas, semicolons or tabs, and several labels of a picture by |. In JSONL and Parquet
    they are lists.

    Raises: ValueError, one line that lists everything wrong with the table.
    """
    rows = read_table(path, columns)
    if path.suffix.lower() in (CSV, TSV) and any("|" in str(cell) for cell in rows.cells):
        rows = rows._replace(cells=[str(cell).split("|") for cell in rows.cells])
    return label_files(rows, path.parent, str(path))


def read_table(path: Path, columns: tuple[str, str]) -> TableRows:
    """Two columns of a table, whose format its suffix tells. Raises: ValueError."""
    return READERS[path.suffix.lower()](path, columns)


def label_files(rows: TableRows, folder: Path, title: str, classes: Sequence[str] = ()) -> Files:
    """Labelled picture files. Args: title: the table's. classes: their names, where labels are indices."""
    found = labelled(rows.cells, rows.places, classes)
    return Files(existing(rows, folder, title, found.problems), found.classes, found.labels)


def existing(rows: TableRows, folder: Path, title: str, problems: Sequence[str]) -> list[str]:
    """The picture files that rows name. Raises: ValueError for all problems, the rows' own and further ones."""
    problems = [*rows.problems, *problems]
    if not rows.places and not problems:
        problems.append("a table must have rows, got none")
    given = [name.strip() if isinstance(name, str) else "" for name in rows.names]
    if not all(given):
        unnamed = [place for place, name in zip(rows.places, given, strict=True) if not name]
        problems.append(f"every row must name a picture, got none in {few(unnamed)}")
    paths = [os.path.join(folder, name) for name in given if name]
    absent = [file for file in progress(paths, "looking for pictures") if not os.path.isfile(file)]
    if absent:
        problems.append(f"pictures must exist, got {len(absent):,} of {len(paths):,} that do not: {few(absent)}")
    if problems:
        raise ValueError(f"{'; '.join(problems)}; source={title}")
    return paths


def read_csv(path: Path, columns: tuple[str, str]) -> TableRows:
    rows, ragged, spread, kind = TableRows([], [], [], []), [], [], path.suffix.lower()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # -sig: Excel begins its files with a mark
            header = file.readline()
            file.seek(0)
            delimiter = "\t" if kind == TSV else max(",;\t", key=header.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            titles = [title.strip() for title in next(reader, [])]
            name, cell = find(path, columns, titles)
            for row in progress(reader, "reading rows"):
                if delimiter == "\t" and any("\t" in one and "\n" in one for one in row):
                    spread.append(f"line {reader.line_num}")
                elif len(row) == len(titles):
                    rows.places.append(f"line {reader.line_num}")
                    rows.names.append(row[name])
                    rows.cells.append(row[cell])
                elif row:
                    ragged.append(f"line {reader.line_num}")
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"table must be {kind[1:].upper()} in UTF-8, got {error}; source={path}") from None
    if spread:
        told = 'every cell that begins with a quote must end with one (write it as """ where it is text)'
        rows.problems.append(f"{told}, got rows in a cell that ends in {few(spread)}")
    if ragged:
        rows.problems.append(f"every row must have {len(titles)} cells as the header has, got others in {few(ragged)}")
    return rows


def read_jsonl(path: Path, columns: tuple[str, str]) -> TableRows:
    rows, titles, broken = TableRows([], [], [], []), dict[str, None](), []
    with path.open("rb") as file:
        for number, line in enumerate(progress(file, "reading rows"), start=1):
            record = _record(line) if line.strip() else {}
            if record is None:
                broken.append(f"line {number}")
            elif record:
                titles |= dict.fromkeys(record)
                rows.places.append(f"line {number}")
                rows.names.append(record.get(columns[0]))
                rows.cells.append(record.get(columns[1]))
    if broken:
        rows.problems.append(f"every line must be a JSON object in UTF-8, got others in {few(broken)}")
    if titles:
        find(path, columns, list(titles))
    return rows


def _record(line: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def holds_pictures(path: Path, columns: tuple[str, str]) -> bool:
    """Whether it is a Parquet file that holds the pictures themselves, and not their paths."""
    if path.suffix.lower() != PARQUET:
        return False
    with _parquet(path) as parquet:
        from pyarrow import types

        schema = parquet.read_schema(path)
        kind = schema.field(columns[0]).type if columns[0] in schema.names else None
        return kind is None or types.is_struct(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def read_parquet(path: Path, columns: tuple[str, str]) -> TableRows:
    with _parquet(path) as parquet:
        find(path, columns, parquet.read_schema(path).names)
        table = parquet.read_table(path, columns=list(dict.fromkeys(columns)))
    names, cells = (table.column(column).to_pylist() for column in columns)
    return TableRows([f"row {row}" for row in range(1, len(names) + 1)], names, cells, [])


@contextmanager
def _parquet(path: Path) -> Iterator[ModuleType]:
    """The library, whose errors become a line."""
    require("pyarrow", f"a {PARQUET} table", "data")
    import pyarrow
    from pyarrow import parquet

    try:
        yield parquet
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"table must be readable as Parquet, got {error!s:.200}; source={path}") from None


def find(path: Path, columns: tuple[str, str], titles: Sequence[str]) -> list[int]:
    """Where in a row the two columns are."""
    if not titles:
        raise ValueError(f"table must name its columns in the first row, got none; source={path}")
    if unknown := [column for column in columns if column not in titles]:
        hint = "".join(near(column, titles) for column in unknown)
        raise ValueError(
            f"columns must be among {few(titles, 12)}, got {', '.join(unknown)}{hint}; "
            f"name them by columns=[PICTURE, LABEL or TEXT]; source={path}"
        )
    return [titles.index(column) for column in columns]


CSV, TSV, PARQUET = ".csv", ".tsv", ".parquet"
READERS: dict[str, Callable[[Path, tuple[str, str]], TableRows]] = {
    CSV: read_csv,
    TSV: read_csv,
    ".jsonl": read_jsonl,
    PARQUET: read_parquet,
}
SUFFIXES = tuple(READERS)
