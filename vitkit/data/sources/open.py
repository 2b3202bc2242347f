"""The dispatch: which source a name means, whether labels or captions of its images are wanted."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from vitkit.data.demo.built_in import BUILT_IN
from vitkit.data.sources import hub, shards, table_files
from vitkit.data.sources.class_folders import class_folders, folders
from vitkit.data.sources.source import COLUMNS, SUFFIXES, Files, Source, pictures_below
from vitkit.support.errors import few, near
from vitkit.support.progress import progress

T = TypeVar("T")


@dataclass(frozen=True)
class Kinds(Generic[T]):
    """What opens each kind of source. Args: more: what else a name may be."""

    built_in: Mapping[str, Callable[[], T]]
    hub: Callable[[str], T]
    folder: Callable[[Path], T]
    shards: Callable[[Sequence[str]], T]
    table: Callable[[Path], T]
    more: str = ""


def open_kind(name: str, kinds: Kinds[T]) -> T:
    """Raises: ValueError, one line that says what is wrong and what is possible."""
    if name in kinds.built_in:
        return kinds.built_in[name]()
    if name.startswith(hub.SCHEME):
        return kinds.hub(name)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return kinds.folder(path)
    if name.lower().endswith(shards.SUFFIX):
        return kinds.shards(shards.expand_shards(name))
    if path.is_file() and path.suffix.lower() in table_files.SUFFIXES:
        return kinds.table(path)
    tables = " ".join(table_files.SUFFIXES)
    told = f"a folder, a table ({tables}), {kinds.more}shards ({shards.SUFFIX}), {hub.SCHEME}NAME"
    if os.sep in name or (name and path.exists()):
        raise ValueError(f"source must be {told} that exists, got source={name}{beside(path)}")
    known = ", ".join(kinds.built_in)
    raise ValueError(f"source must be {told} or one of {known}, got source={name}{near(name, kinds.built_in)}")


def tables_and_shards(root: Path) -> tuple[list[str], list[str]]:
    """Of a folder that is a source itself."""
    files = sorted(entry.name for entry in os.scandir(root) if entry.name[0] != ".")
    listed = [file for file in files if file in {f"metadata{suffix}" for suffix in table_files.SUFFIXES}]
    return listed, [file for file in files if file.endswith(shards.SUFFIX)]


def beside(path: Path) -> str:
    """The existing path that one with a misspelt end may mean."""
    if path.exists() or not path.parent.is_dir():
        return ""
    return near(str(path), [str(path.parent / entry) for entry in os.listdir(path.parent)])


def open_source(name: str, columns: tuple[str, str] = COLUMNS) -> Source:
    """A built-in set by its name, a folder, a table, shards, or hf:NAME; a folder called digits is written ./digits.

    In a folder the table metadata.csv, .jsonl or .parquet counts, else shards, else class folders.

    Args: columns: what a table or data set calls the picture and its label.
    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    return open_kind(
        name,
        Kinds(
            BUILT_IN,
            hub=lambda name: hub.open_hub(name, columns),
            folder=lambda root: open_image_folder(root, columns),
            shards=lambda paths: shards.index_shards(paths, columns[1]),
            table=lambda path: open_table(path, columns),
        ),
    )


def open_table(path: Path, columns: tuple[str, str] = COLUMNS) -> Source:
    """Open a table of image paths, or a Parquet file that holds the images themselves."""
    if table_files.holds_pictures(path, columns):
        return hub.open_parquet(path, columns)
    return table_files.open_table(path, columns)


def open_unlabelled(name: str, columns: tuple[str, str] = COLUMNS) -> Source:
    """A picture, all pictures below any folder, or those of what else `open_source` understands; labels are -1.

    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    path = Path(name).expanduser()
    if name and name not in BUILT_IN and path.is_dir():
        if files := list(progress(pictures_below(path), "listing pictures")):
            return Files(files, (), [-1] * len(files))
        if not any(entry.endswith(shards.SUFFIX) for entry in os.listdir(path)):
            raise ValueError(f"source must hold pictures ({' '.join(SUFFIXES)}) or shards, got none in source={name}")
    if path.suffix.lower() in SUFFIXES:
        if not path.is_file():
            raise ValueError(f"source must be a picture that exists, got source={name}{beside(path)}")
        return Files([str(path)], (), [-1])
    source = open_source(name, columns)
    source.classes, source.labels = (), [-1] * len(source)
    return source


def open_image_folder(root: Path, columns: tuple[str, str]) -> Source:
    """Raises: ValueError where a folder is two kinds of source at once."""
    listed, tars = tables_and_shards(root)
    # A table may lie beside the folders that its pictures are in.
    classes = [name for name in folders(root) if any(pictures_below(root / name))] if tars and not listed else []
    if len(found := [*listed, *tars[:1], *(f"{name}/" for name in classes[:1])]) > 1:
        raise ValueError(f"source must be one of a table, shards and class folders, got {few(found)}; source={root}")
    if listed:
        return open_table(root / listed[0], columns)
    if tars:
        return shards.index_shards([str(root / name) for name in tars], columns[1])
    return class_folders(root)
