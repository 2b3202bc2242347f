"""Images and their annotations in a table: CSV, TSV, JSONL or Parquet; paths are relative to its folder."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.annotations.raw_text import decode_json
from vitkit.data.sources import hub
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import (
    Columns,
    Listing,
    TableListing,
    join_cells,
    name_classes,
    refuse_repeated_columns,
)
from vitkit.support.errors import format_count, format_few, suggest
from vitkit.support.extras import require_package
from vitkit.support.progress import track_progress

if TYPE_CHECKING:
    import pyarrow


def list_table(name: str, annotation: Annotation, columns: Columns, exclude: Sequence[str]) -> Listing:
    """List the samples in a table. Its suffix is its format; a Parquet file may also hold the images themselves.

    A CSV may be separated by commas, semicolons or tabs, and several labels of an image by |. In JSONL and Parquet
    they are lists.
    """
    path = Path(name).expanduser()
    if holds_pictures(path, columns):
        return hub.list_parquet(path, annotation, columns)
    return READERS[path.suffix.lower()](path, columns, annotation.optional and columns == annotation.columns)


def read_csv(path: Path, columns: Columns, optional: bool) -> TableListing:
    rows = TableListing(title=str(path), folder=path.parent, delimited=True, class_names=name_classes(columns))
    ragged_rows, open_quotes, kind = [], [], path.suffix.lower()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # -sig: Excel puts a byte-order mark first
            header = file.readline()
            file.seek(0)
            delimiter = "\t" if kind == TSV else max(",;\t", key=header.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            titles = [title.strip() for title in next(reader, [])]
            refuse_repeated_columns(path, [title for title in titles if title in columns])
            name, cells = find_columns(path, columns, titles, optional)
            for row in track_progress(reader, "reading rows"):
                if delimiter == "\t" and any("\t" in value and "\n" in value for value in row):
                    open_quotes.append(f"line {reader.line_num}")
                elif len(row) == len(titles):
                    rows.add(
                        f"line {reader.line_num}", row[name], join_cells(columns[1:], [row[cell] for cell in cells])
                    )
                elif row:
                    ragged_rows.append(f"line {reader.line_num}")
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"table must be {kind[1:].upper()} in UTF-8, got {error}; source={path}") from None
    if open_quotes:
        rule = 'every cell that begins with a quote must end with one (write it as """ where it is text)'
        rows.problems.append(f"{rule}, got rows in a cell that ends in {format_few(open_quotes)}")
    if ragged_rows:
        cells = format_count(len(titles), "cells")
        rows.problems.append(f"every row must have {cells} as the header has, got others in {format_few(ragged_rows)}")
    return rows


def read_jsonl(path: Path, columns: Columns, optional: bool) -> TableListing:
    rows = TableListing(title=str(path), folder=path.parent, class_names=name_classes(columns))
    titles, invalid = dict[str, None](), []
    with path.open("rb") as file:
        for number, line in enumerate(track_progress(file, "reading rows"), start=1):
            record = decode_json(line) if line.strip() else None
            if isinstance(record, Exception):
                invalid.append(f"line {number}")
            elif record is not None:
                titles |= dict.fromkeys(record)
                name, *cells = (column and record.get(column) for column in columns)
                rows.add(f"line {number}", name, join_cells(columns[1:], cells))
    if invalid:
        rule = "every line must be a JSON object in UTF-8 whose keys differ"
        rows.problems.append(f"{rule}, got others in {format_few(invalid)}")
    if titles:
        find_columns(path, columns, list(titles), optional)
    return rows


def holds_pictures(path: Path, columns: Columns) -> bool:
    """Return whether a table is a Parquet file that holds the images themselves, not their paths."""
    if path.suffix.lower() != PARQUET:
        return False
    with _open_parquet(path) as parquet:
        from pyarrow import types

        schema = parquet.read_schema(path)
        refuse_repeated_columns(path, schema.names)  # of any column: `datasets` opens no such file
        kind = schema.field(columns[0]).type if columns[0] in schema.names else None
        return kind is None or types.is_struct(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def read_parquet(path: Path, columns: Columns, optional: bool) -> TableListing:
    with _open_parquet(path) as parquet:
        titles = parquet.read_schema(path).names
        find_columns(path, columns, titles, optional)
        table = parquet.read_table(path, columns=[column for column in dict.fromkeys(columns) if column in titles])
    names, *others = (_read_column(table, column) for column in columns)
    return TableListing(
        title=str(path),
        folder=path.parent,
        places=[f"row {row}" for row in range(1, len(names) + 1)],
        names=names,
        annotations=[join_cells(columns[1:], cells) for cells in zip(*others, strict=True)],
        class_names=name_classes(columns),
    )


def _read_column(table: "pyarrow.Table", column: str | None) -> list[object]:
    return [None] * len(table) if column not in table.column_names else table.column(column).to_pylist()


def is_table(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES


@contextmanager
def _open_parquet(path: Path) -> Iterator[ModuleType]:
    """Return pyarrow's parquet module; its errors become one line."""
    require_package("pyarrow", f"a {PARQUET} table", "data")
    import pyarrow
    from pyarrow import parquet

    try:
        yield parquet
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"table must be readable as Parquet, got {error!s:.200}; source={path}") from None


def find_columns(path: Path, columns: Columns, titles: Sequence[str], optional: bool) -> tuple[int, list[int]]:
    """Return the index of the image's column and those of its annotation. Args: optional: these may be missing."""
    if not titles:
        raise ValueError(f"table must name its columns in the first row, got none; source={path}")
    needed = columns[:1] if optional else columns
    if unknown := [column for column in needed if column and column not in titles]:
        hint = "".join(suggest(column, titles) for column in unknown)
        raise ValueError(
            f"columns must be among {format_few(titles, 12)}, got {', '.join(unknown)}{hint}; "
            f"name them by columns=[{'PICTURE, LABEL or TEXT' if columns[1:] != (None,) else 'NAME'}]; source={path}"
        )
    picture, *others = (titles.index(column) for column in columns if column in titles)
    return picture, others


CSV, TSV, PARQUET = ".csv", ".tsv", ".parquet"
READERS: dict[str, Callable[[Path, Columns, bool], TableListing]] = {
    CSV: read_csv,
    TSV: read_csv,
    ".jsonl": read_jsonl,
    PARQUET: read_parquet,
}
SUFFIXES = tuple(READERS)
TABLE = Kind(f"a table ({' '.join(SUFFIXES)})", lambda name: is_table(Path(name).expanduser()), list_table)
