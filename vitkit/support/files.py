"""Writing files so that nothing is lost: new folders, free names, replacement in one step. JSON objects."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitkit.support.errors import prefix_errors


@contextmanager
def create_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which then appears as `folder`, whole or not at all."""
    require_new_folder(folder)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
        whole = Path(beside) / "whole"
        whole.mkdir()
        yield whole
        if folder.exists():
            folder.rmdir()
        whole.rename(folder)


def require_new_folder(folder: Path) -> Path:
    if not folder.parent.is_dir() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ValueError(f"out must be new or empty, in a folder that exists, got out={folder}; nothing is overwritten")
    return folder


def require_new_file(path: Path) -> Path:
    """Return the path. Raises: ValueError if something is there, or its folder does not exist."""
    if path.exists() or not path.parent.is_dir():
        raise ValueError(f"out must be a new file in a folder that exists, got out={path}; nothing is overwritten")
    return path


def require_report_folder(folder: Path, report: str, files: Collection[str], kind: str) -> Path:
    """Return the folder. Raises: ValueError if it holds anything but an earlier report of this kind and its files."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, got out={folder}")
    names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    if names and not (report in names and names <= {*files, report}):
        raise ValueError(f"out must be new, empty or an earlier {kind}, got out={folder}; nothing is overwritten")
    return folder


def choose_png_name(stem: str, taken: set[str]) -> str:
    """The name of a file, with a number where it is taken; on some systems A and a are one file."""
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    name = next(name for name in names if name.casefold() not in taken)
    taken.add(name.casefold())
    return f"{name}.png"


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; the new file then takes the old one's place, whole or not at all."""
    beside = path.with_name(f".{path.name}.vitkit.partial")  # hidden, and nobody else's
    try:
        yield beside
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    mask = os.umask(0)
    os.umask(mask)
    beside.chmod(0o666 & ~mask)  # safetensors makes files that only their owner may read
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises: ValueError, one line that starts with the path."""
    with prefix_errors(path):
        value = json.loads(path.read_text("utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"must hold names and values, got {value!r:.80}")
        return value


def write_json(path: Path, value: Mapping[str, Any], *, allow_nan: bool = True) -> None:
    """Replace a file by a JSON object. Surrogates, which stand for names of files that are no text, are escaped."""
    with replace_file(path) as beside:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=allow_nan)
        beside.write_text(text + "\n", "utf-8", errors="backslashreplace")
