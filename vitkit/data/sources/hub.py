"""Data sets of the Hugging Face hub or in its formats, through `datasets`. No code of a data set is run."""

import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.annotations.labels import get_item_feature
from vitkit.data.preprocess import PictureError
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import (
    Columns,
    Listing,
    TableListing,
    join_cells,
    name_classes,
    refuse_repeated_columns,
)
from vitkit.data.sources.source import END, Source
from vitkit.support.errors import suggest
from vitkit.support.extras import require_package

if TYPE_CHECKING:
    import datasets
    import pyarrow

SCHEME = "hf:"
PICTURE = "image"  # the column's usual name there


class HubImages(Source):
    """Images whose files are the cells of a column, which is mapped into memory and not loaded."""

    def __init__(self, title: str, column: "datasets.Dataset", folder: Path) -> None:
        super().__init__((), [-1] * len(column))
        self.folder = folder
        self.title = title
        self.column = column

    def get_name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def get_relative_name(self, index: int) -> str:
        return f"{os.path.basename(self.title)}[{index}]"

    def read_content(self, index: int) -> bytes:
        return self._cell(index).to_pybytes()

    def count_bytes(self, index: int) -> int:
        return self._cell(index).size

    def read_end(self, index: int) -> bytes:
        cell = self._cell(index)
        return cell[max(0, cell.size - END) :].to_pybytes()

    def _cell(self, index: int) -> "pyarrow.Buffer":
        import pyarrow

        cell = read_rows(self.column, index).column(0)[0]
        content = cell["bytes"] if pyarrow.types.is_struct(cell.type) else cell
        if content.is_valid:
            return content.as_buffer()
        path = self.folder / (cell["path"].as_py() or "") if content is not cell else self.folder
        if not path.is_file():  # a device would never end
            raise PictureError(f"picture must be a file that exists, got picture={self.get_name(index)} ({path})")
        return pyarrow.py_buffer(path.read_bytes())


@dataclass(kw_only=True)
class RowListing(Listing):
    """The rows of a data set that holds its images. Args: pictures: the column of images."""

    rows: "datasets.Dataset"
    folder: Path
    pictures: str
    empty: str = "a data set must have rows, got none"

    def open_images(self, rows: Sequence[int]) -> HubImages:
        column = self.rows.select_columns([self.pictures])
        selection = column if len(rows) == len(column) else column.select(rows)
        return HubImages(self.title, selection.with_format("arrow"), self.folder)


def list_hub(name: str, annotation: Annotation, columns: Columns, exclude: Sequence[str]) -> Listing:
    """List hf:NAME, hf:NAME@SPLIT or hf:NAME:CONFIG@SPLIT of the hub or a folder; the split is train by default."""
    return list_rows(load_hub(name), name, annotation, columns)


def load_hub(name: str) -> "datasets.Dataset":
    require_package("datasets", name, "data")
    path, config, split = parse_hub_name(name)
    return _load_or_explain(name, lambda: _load_split(path, config, split))


def list_parquet(path: Path, annotation: Annotation, columns: Columns) -> Listing:
    """List the images inside a Parquet file."""
    return list_rows(load_parquet(path), str(path), annotation, columns, path.parent)


def load_parquet(path: Path) -> "datasets.Dataset":
    """Return a Parquet file, which `datasets` unpacks into its cache once and maps into memory from there."""
    require_package("datasets", f"{path}, which holds pictures,", "data")
    import datasets
    from pyarrow.dataset import ParquetFragmentScanOptions

    # With its buffer on, unpacking a file of 800 MB takes 920 MB of memory, without it 270.
    plain = ParquetFragmentScanOptions(pre_buffer=False)
    return _load_or_explain(str(path), lambda: datasets.Dataset.from_parquet(str(path), fragment_scan_options=plain))


def parse_hub_name(name: str) -> tuple[str, str | None, str]:
    """Return the path, configuration and split of hf:PATH:CONFIG@SPLIT; a folder of that whole name is the path."""
    rest, config, split = name.removeprefix(SCHEME), "", "train"
    if not os.path.isdir(os.path.expanduser(rest)):
        if "@" in rest:
            rest, _, split = rest.rpartition("@")
        if ":" in rest and not os.path.isdir(os.path.expanduser(rest)):
            rest, _, config = rest.rpartition(":")
    if not (rest and split):
        raise ValueError(f"source must be hf:NAME, hf:NAME@SPLIT or hf:NAME:CONFIG@SPLIT, got source={name}")
    return os.path.expanduser(rest), config or None, split


def _load_split(path: str, config: str | None, split: str) -> object:
    import datasets

    if not any(os.path.exists(os.path.join(path, file)) for file in ("state.json", "dataset_dict.json")):
        return datasets.load_dataset(path, config, split=split)
    data = datasets.load_from_disk(path)
    if isinstance(data, dict) and split not in data:
        raise ValueError(f"there is no split {split}, only {', '.join(map(str, data))}")
    return data[split] if isinstance(data, dict) else data


def _load_or_explain(name: str, load: Callable[[], object]) -> "datasets.Dataset":
    import datasets

    try:
        data = load()
        if isinstance(data, datasets.Dataset):
            return data
        raise ValueError(f"it must be a table of rows, got {type(data).__name__}")
    except Exception as error:  # of the network, of file formats, of names; datasets raises dozens of kinds
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        raise ValueError(f"source must be a data set that opens, got source={name} ({reason})") from None


def list_rows(
    rows: "datasets.Dataset", title: str, annotation: Annotation, columns: Columns, folder: Path = Path()
) -> Listing:
    """List the rows of a data set. Args: folder: of relative paths of image files."""
    features = rows.features
    others = annotation.find_columns(features, columns[1]) if columns[1] and len(columns) == 2 else []
    chosen = choose_columns(rows, title, columns, others, annotation.optional and columns == annotation.columns)
    refuse_repeated_columns(title, list_columns_in_file(rows, chosen))
    picture, other = chosen[0] or "", chosen[1]
    columns_of_cells = [_read_cells(rows, name).to_pylist() for name in chosen[1:] if name]
    cells = [join_cells(chosen[1:], row) for row in zip(*columns_of_cells, strict=True)] or [None] * len(rows)
    places = [f"row {row}" for row in range(len(cells))]
    class_names = name_classes(chosen) or getattr(get_item_feature(features.get(other)), "names", None) or ()
    names = _read_paths(_read_cells(rows, picture), picture, title)
    fields: dict[str, Any] = {"title": title, "places": places, "annotations": cells, "class_names": class_names}
    if names is not None:
        return TableListing(**fields, folder=folder, names=names)
    return RowListing(**fields, folder=folder, rows=rows, pictures=picture)


def choose_columns(
    rows: "datasets.Dataset", title: str, columns: Columns, others: Sequence[str], optional: bool
) -> Columns:
    """Return the columns of images and annotations: those of the names, else the only ones of their type.

    Args: others: the columns of the annotation's type.
    """
    import datasets

    features = rows.features
    kinds = {name: type(get_item_feature(feature)) for name, feature in features.items()}
    pictures = [name for name, kind in kinds.items() if kind is datasets.Image]
    pictures = pictures or [name for name, feature in features.items() if getattr(feature, "dtype", "") in BINARY]
    picture = next(
        (name for name in (columns[0], PICTURE) if name in features), pictures[0] if len(pictures) == 1 else ""
    )
    chosen = [name if name in features else others[0] if len(others) == 1 else None for name in columns[1:]]
    needed = ((columns[0], picture), *(() if optional else zip(columns[1:], chosen, strict=True)))
    unknown = [name for name, column in needed if name and not column]
    if unknown:
        hint = "".join(suggest(name, features) for name in unknown)
        known = ", ".join(f"{name} ({kinds[name].__name__})" for name in features)
        raise ValueError(
            f"columns must be among {known}, got {', '.join(unknown)}{hint}; "
            f"name them by columns=[PICTURE, LABEL or TEXT]; source={title}"
        )
    return picture, *chosen


def list_columns_in_file(rows: "datasets.Dataset", names: Iterable[str | None]) -> list[str]:
    """Return the columns that had these names in a file; pandas, which reads CSV, calls a second label label.1."""
    renamed = (".1",) if rows.info.builder_name in ("csv", "imagefolder") else ()
    return [name for name in names for end in ("", *renamed) if name and f"{name}{end}" in rows.features]


BINARY = ("binary", "large_binary")


def _read_paths(cells: "pyarrow.ChunkedArray", column: str, title: str) -> list[object] | None:
    """Return the image files of a column of paths; None for a column that holds the files themselves."""
    from pyarrow import types

    if types.is_struct(cells.type) and {"bytes", "path"} <= {field.name for field in cells.type}:
        parts = [(part.field("bytes"), part.field("path")) for part in cells.chunks]
        if any(contents.null_count < len(contents) for contents, _ in parts):
            return None
        return [path for _, paths in parts for path in paths.to_pylist()]
    if types.is_string(cells.type) or types.is_large_string(cells.type):
        return cells.to_pylist()
    if types.is_binary(cells.type) or types.is_large_binary(cells.type):
        return None
    raise ValueError(f"pictures must be files or their paths, got {cells.type} in column {column}; source={title}")


def _read_cells(rows: "datasets.Dataset", column: str) -> "pyarrow.ChunkedArray":
    return read_rows(rows.select_columns([column]).with_format("arrow"), slice(None)).column(0)


def read_rows(data: "datasets.Dataset", rows: int | slice) -> "pyarrow.Table":
    """Return rows of a data set whose format is arrow, without a copy."""
    part: Any = data[rows]
    return part


HUB = Kind(f"{SCHEME}NAME", lambda name: name.startswith(SCHEME), list_hub)
