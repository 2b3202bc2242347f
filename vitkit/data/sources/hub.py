"""Data sets of the Hugging Face hub or in its formats, through `datasets`. No code that comes with one is run."""

import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.data.annotations.labels import labelled
from vitkit.data.order import Labels
from vitkit.data.preprocess import PictureError
from vitkit.data.sources import table_files
from vitkit.data.sources.source import END, Source
from vitkit.support.errors import near
from vitkit.support.extras import require

if TYPE_CHECKING:
    import datasets
    import pyarrow

SCHEME = "hf:"
PICTURE = "image"  # the column's usual name there


class Rows(Source):
    """Pictures whose files are cells of a column, which is mapped into memory and not read."""

    def __init__(
        self, title: str, column: "datasets.Dataset", classes: Sequence[str], labels: Labels, folder: Path
    ) -> None:
        super().__init__(classes, labels)
        self.folder = folder
        self.title = title
        self.column = column

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def content(self, index: int) -> bytes:
        return self._cell(index).to_pybytes()

    def length(self, index: int) -> int:
        return self._cell(index).size

    def end(self, index: int) -> bytes:
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
            raise PictureError(f"picture must be a file that exists, got picture={self.name(index)} ({path})")
        return pyarrow.py_buffer(path.read_bytes())


def open_hub(name: str, columns: tuple[str, str]) -> Source:
    """hf:NAME, hf:NAME@SPLIT or hf:NAME:CONFIG@SPLIT, of the hub or of a local folder; the split is train by default.

    Raises: ValueError, one line.
    """
    return of_dataset(load_hub(name), name, columns)


def load_hub(name: str) -> "datasets.Dataset":
    """What `open_hub` reads."""
    require("datasets", name, "data")
    path, config, split = parse(name)
    return _one_line(name, lambda: _load(path, config, split))


def open_parquet(path: Path, columns: tuple[str, str]) -> Source:
    """Pictures inside a Parquet file."""
    return of_dataset(load_parquet(path), str(path), columns, path.parent)


def load_parquet(path: Path) -> "datasets.Dataset":
    """A Parquet file, which `datasets` unpacks into its cache once and maps into memory from there."""
    require("datasets", f"{path}, which holds pictures,", "data")
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


def of_dataset(found: "datasets.Dataset", title: str, columns: tuple[str, str], folder: Path = Path()) -> Source:
    """The pictures and labels of a data set's rows. Args: folder: what the paths of picture files are relative to."""
    import datasets

    features = found.features
    labels = [name for name, feature in features.items() if isinstance(inner(feature), datasets.ClassLabel)]
    picture, label = choose_columns(found, title, columns, labels)
    names = getattr(inner(features[label]), "names", None) or ()
    rows, files = listed(found, title, picture, label)
    if files:
        return table_files.label_files(rows, folder, title, names)
    classes, labels, problems = labelled(rows.cells, rows.places, names)
    return held(found, title, picture, folder, problems, classes, labels)


def listed(found: "datasets.Dataset", title: str, picture: str, other: str) -> tuple[table_files.TableRows, bool]:
    """Two columns of a data set, and whether the pictures are files; else the rows name none, but hold them."""
    cells = _cells(found, other).to_pylist()
    paths = _paths(_cells(found, picture), picture, title)
    return table_files.TableRows([f"row {row}" for row in range(len(cells))], paths or [], cells, []), paths is not None


def held(
    found: "datasets.Dataset",
    title: str,
    picture: str,
    folder: Path,
    problems: Sequence[str],
    classes: Sequence[str],
    labels: Labels,
) -> Rows:
    """The pictures that a data set holds itself. Raises: ValueError for the problems."""
    if problems or not len(found):
        raise ValueError(f"{'; '.join(problems) or 'a data set must have rows, got none'}; source={title}")
    return Rows(title, found.select_columns([picture]).with_format("arrow"), classes, labels, folder)


def inner(feature: object) -> object:
    """What a list holds; else the feature itself."""
    return getattr(feature, "feature", feature)


def choose_columns(
    found: "datasets.Dataset", title: str, columns: tuple[str, str], others: Sequence[str]
) -> tuple[str, str]:
    """The picture's column and the other: as told, else the only ones of their kind. Args: others: of that kind."""
    import datasets

    features = found.features
    kinds = {name: type(inner(feature)) for name, feature in features.items()}
    pictures = [name for name, kind in kinds.items() if kind is datasets.Image]
    pictures = pictures or [name for name, feature in features.items() if getattr(feature, "dtype", "") in BINARY]
    picture = next(
        (name for name in (columns[0], PICTURE) if name in features), pictures[0] if len(pictures) == 1 else ""
    )
    other = columns[1] if columns[1] in features else others[0] if len(others) == 1 else ""
    unknown = [name for name, found in zip(columns, (picture, other), strict=True) if not found]
    if unknown:
        hint = "".join(near(name, features) for name in unknown)
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
