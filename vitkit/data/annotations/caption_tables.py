"""Pictures and captions in tables and data sets; several rows of one picture file are several captions of it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.data.annotations.captions import TEXT_COLUMNS, Captioned, attach_captions, texts
from vitkit.data.sources import hub, table_files
from vitkit.data.sources.source import Files
from vitkit.data.sources.table_files import TableRows

if TYPE_CHECKING:
    import datasets

TEXTS = ("string", "large_string")
USUAL = ("text", "caption", "captions")  # names of columns on the hub


def open_captioned_table(path: Path, columns: tuple[str, str]) -> Captioned:
    """As `table_files.open_table` reads it, but that a caption may hold |."""
    if table_files.holds_pictures(path, columns):
        return of_dataset(hub.load_parquet(path), str(path), columns, path.parent)
    return of_files(table_files.read_table(path, columns), path.parent, str(path))


def open_captioned_hub(name: str, columns: tuple[str, str]) -> Captioned:
    return of_dataset(hub.load_hub(name), name, columns)


def of_files(rows: TableRows, folder: Path, title: str) -> Captioned:
    """The picture files that rows name. Raises: ValueError, one line that lists everything wrong."""
    told = texts(rows.cells, rows.places)
    first: dict[object, int] = {}
    kept: list[int] = []
    merged: list[tuple[str, ...]] = []
    for row, (name, own) in enumerate(zip(rows.names, told.captions, strict=True)):
        known = name.strip() if isinstance(name, str) else ""
        place = first.setdefault(os.path.abspath(folder / known) if known else row, len(merged))
        if place == len(merged):
            kept.append(row)
            merged.append(own)
        else:
            merged[place] = tuple(dict.fromkeys(merged[place] + own))
    pictures = TableRows([rows.places[row] for row in kept], [rows.names[row] for row in kept], [], rows.problems)
    paths = table_files.existing(pictures, folder, title, told.problems)
    return attach_captions(Files(paths, (), [-1] * len(paths)), merged)


def of_dataset(found: "datasets.Dataset", title: str, columns: tuple[str, str], folder: Path = Path()) -> Captioned:
    """The column of captions is the one that `columns` names; by default `text`, else `caption` or `captions`, else
    the only one that holds texts or lists of them.
    """
    features = found.features
    others = []
    if columns[1] == TEXT_COLUMNS[1]:
        others = [name for name in USUAL if name in features][:1]
        others = others or [name for name in features if getattr(hub.inner(features[name]), "dtype", "") in TEXTS]
    picture, text = hub.choose_columns(found, title, columns, others)
    rows, files = hub.listed(found, title, picture, text)
    if files:
        return of_files(rows, folder, title)
    told = texts(rows.cells, rows.places)
    pictures = hub.held(found, title, picture, folder, told.problems, (), [-1] * len(told.captions))
    return attach_captions(pictures, told.captions)
