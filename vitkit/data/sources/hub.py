"""Data sets of the Hugging Face hub or in its formats, through `datasets`. No code that comes with one is run."""

import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.annotations.labels import inner
from vitkit.data.preprocess import PictureError
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import Columns, Listing, TableListing
from vitkit.data.sources.source import END, Source
from vitkit.support.errors import suggest
from vitkit.support.extras import require_package

if TYPE_CHECKING:
    import datasets
    import pyarrow

SCHEME = "hf:"
PICTURE = "image"  # the column's usual name there


class Rows(Source):
    """Pictures whose files are cells of a column, which is mapped into memory and not read."""

    def __init__(self, title: str, column: "datasets.Dataset", folder: Path) -> None:
        super().__init__((), [-1] * len(column))
        self.folder = folder
        self.title = title
        self.column = column

    def get_name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def read_content(self, index: int) -> bytes:
        return self._cell(index).to_pybytes()

    def count_bytes(self, index: int) -> int:
        return self._cell(index).size

    def read_end(self, index: int) -> bytes:
        cell = self._cell(index)
        return cell[max(0, cell.size - END) :].to_pybytes()

    def _cell(self, index: int) -> "pyarrow.Buffer":
        import pyarrow

        cell = table(self.column, index).column(0)[0]
        held = cell["bytes"] if pyarrow.types.is_struct(cell.type) else cell
        if held.is_valid:
            return held.as_buffer()
        path = self.folder / (cell["path"].as_py() or "") if held is not cell else self.folder
        if not path.is_file():  # nor a device, which would never end
            raise PictureError(f"picture must be a file that exists, got picture={self.get_name(index)} ({path})")
        return pyarrow.py_buffer(path.read_bytes())


@dataclass(kw_only=True)
class RowListing(Listing):
    """The rows of a data set that holds its images. Args: pictures: the column of images."""

    rows: "datasets.Dataset"
    folder: Path
    pictures: str
    empty: str = "a data set must have rows, got none"

    def images(self, rows: Sequence[int]) -> Rows:
        column = self.rows.select_columns([self.pictures])
        chosen = column if len(rows) == len(column) else column.select(rows)
        return Rows(self.title, chosen.with_format("arrow"), self.folder)


def list_hub(name: str, annotation: Annotation, columns: Columns) -> Listing:
    """hf:NAME, hf:NAME@SPLIT or hf:NAME:CONFIG@SPLIT, of the hub or of a folder; the split is train by default."""
    return list_rows(load_hub(name), name, annotation, columns)


def load_hub(name: str) -> "datasets.Dataset":
    require_package("datasets", name, "data")
    path, config, split = parse(name)
    return _one_line(name, lambda: _load(path, config, split))


def list_parquet(path: Path, annotation: Annotation, columns: Columns) -> Listing:
    """Pictures inside a Parquet file."""
    return list_rows(load_parquet(path), str(path), annotation, columns, path.parent)


def load_parquet(path: Path) -> "datasets.Dataset":
    """A Parquet file, which `datasets` unpacks into its cache once and maps into memory from there."""
    require_package("datasets", f"{path}, which holds pictures,", "data")
    import datasets
    from pyarrow.dataset import ParquetFragmentScanOptions

    # With its buffer on, unpacking a file of 800 MB takes 920 MB of memory, without it 270.
    plain = ParquetFragmentScanOptions(pre_buffer=False)
    return _one_line(str(path), lambda: datasets.Dataset.from_parquet(str(path), fragment_scan_options=plain))


def parse(name: str) -> tuple[str, str | None, str]:
    """The path, configuration and split in hf:PATH:CONFIG@SPLIT; a folder of that whole name is the path."""
    rest, config, split = name.removeprefix(SCHEME), "", "train"
    if not os.path.isdir(os.path.expanduser(rest)):
        if "@" in rest:
            rest, _, split = rest.rpartition("@")
        if ":" in rest and not os.path.isdir(os.path.expanduser(rest)):
            rest, _, config = rest.rpartition(":")
    if not (rest and split):
        raise ValueError(f"source must be hf:NAME, hf:NAME@SPLIT or hf:NAME:CONFIG@SPLIT, got source={name}")
    return os.path.expanduser(rest), config or None, split


def _load(path: str, config: str | None, split: str) -> object:
    import datasets

    if not any(os.path.exists(os.path.join(path, file)) for file in ("state.json", "dataset_dict.json")):
        return datasets.load_dataset(path, config, split=split)
    found = datasets.load_from_disk(path)
    if isinstance(found, dict) and split not in found:
        raise ValueError(f"there is no split {split}, only {', '.join(map(str, found))}")
    return found[split] if isinstance(found, dict) else found


def _one_line(name: str, load: Callable[[], object]) -> "datasets.Dataset":
    import datasets

    try:
        found = load()
        if isinstance(found, datasets.Dataset):
            return found
        raise ValueError(f"it must be a table of rows, got {type(found).__name__}")
    except Exception as error:  # of the network, of file formats, of names; datasets raises dozens of kinds
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        raise ValueError(f"source must be a data set that opens, got source={name} ({reason})") from None


def list_rows(
    rows: "datasets.Dataset", title: str, annotation: Annotation, columns: Columns, folder: Path = Path()
) -> Listing:
    """The rows of a data set. Args: folder: what the paths of picture files are relative to."""
    features = rows.features
    others = [] if columns[1] is None else annotation.find_columns(features, columns[1])
    picture, other = choose_columns(rows, title, columns, others, annotation.optional and columns == annotation.columns)
    cells = [None] * len(rows) if other is None else _cells(rows, other).to_pylist()
    places = [f"row {row}" for row in range(len(cells))]
    class_names = () if other is None else getattr(inner(features[other]), "names", None) or ()
    names = _paths(_cells(rows, picture), picture, title)
    about: dict[str, Any] = {"title": title, "places": places, "annotations": cells, "class_names": class_names}
    if names is not None:
        return TableListing(**about, folder=folder, names=names)
    return RowListing(**about, folder=folder, rows=rows, pictures=picture)


def choose_columns(
    rows: "datasets.Dataset", title: str, columns: Columns, others: Sequence[str], optional: bool
) -> Columns:
    """The picture's column and the other: as told, else the only ones of their kind. Args: others: of that kind."""
    import datasets

    features = rows.features
    kinds = {name: type(inner(feature)) for name, feature in features.items()}
    pictures = [name for name, kind in kinds.items() if kind is datasets.Image]
    pictures = pictures or [name for name, feature in features.items() if getattr(feature, "dtype", "") in BINARY]
    picture = next(
        (name for name in (columns[0], PICTURE) if name in features), pictures[0] if len(pictures) == 1 else ""
    )
    other = columns[1] if columns[1] in features else others[0] if len(others) == 1 else None
    needed = ((columns[0], picture), *(() if optional else ((columns[1], other),)))
    unknown = [name for name, column in needed if name and not column]
    if unknown:
        hint = "".join(suggest(name, features) for name in unknown)
        told = ", ".join(f"{name} ({kinds[name].__name__})" for name in features)
        raise ValueError(
            f"columns must be among {told}, got {', '.join(unknown)}{hint}; "
            f"name them by columns=[PICTURE, LABEL or TEXT]; source={title}"
        )
    return picture, other


BINARY = ("binary", "large_binary")


def _paths(cells: "pyarrow.ChunkedArray", column: str, title: str) -> list[object] | None:
    """The picture files, where the column holds nothing but their paths."""
    from pyarrow import types

    if types.is_struct(cells.type) and {"bytes", "path"} <= {field.name for field in cells.type}:
        parts = [(part.field("bytes"), part.field("path")) for part in cells.chunks]
        if any(held.null_count < len(held) for held, _ in parts):
            return None
        return [path for _, paths in parts for path in paths.to_pylist()]
    if types.is_string(cells.type) or types.is_large_string(cells.type):
        return cells.to_pylist()
    if types.is_binary(cells.type) or types.is_large_binary(cells.type):
        return None
    raise ValueError(f"pictures must be files or their paths, got {cells.type} in column {column}; source={title}")


def _cells(found: "datasets.Dataset", column: str) -> "pyarrow.ChunkedArray":
    return table(found.select_columns([column]).with_format("arrow"), slice(None)).column(0)


def table(found: "datasets.Dataset", rows: int | slice) -> "pyarrow.Table":
    """Rows of a data set whose format is arrow; nothing is copied."""
    part: Any = found[rows]
    return part


HUB = Kind(f"{SCHEME}NAME", lambda name: name.startswith(SCHEME), list_hub)
