"""Files and folders that are written as a whole or not at all, checks of output paths, JSON objects."""

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
    """Yield a temporary folder to fill, which becomes `folder` as a whole or not at all."""
    require_new_folder(folder)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as parent:
        temporary = Path(parent) / "whole"
        temporary.mkdir()
        yield temporary
        if folder.exists():
            folder.rmdir()
        temporary.rename(folder)


def require_new_folder(folder: Path) -> Path:
    """Return the folder. Raises: ValueError if something is in it, or its parent does not exist."""
    if not folder.parent.is_dir() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ValueError(f"out must be new or empty, in a folder that exists, got out={folder}; nothing is overwritten")
    return folder


def require_new_file(path: Path) -> Path:
    """Return the path. Raises: ValueError if it exists, or its folder does not."""
    if path.exists() or not path.parent.is_dir():
        raise ValueError(f"out must be a new file in a folder that exists, got out={path}; nothing is overwritten")
    return path


def require_report_folder(folder: Path, report: str, files: Collection[str], kind: str) -> Path:
    """Return the folder. Raises: ValueError if it holds files other than those of an earlier report of this kind."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, got out={folder}")
    names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    if names and not (report in names and names <= {*files, report}):
        raise ValueError(f"out must be new, empty or an earlier {kind}, got out={folder}; nothing is overwritten")
    return folder


def choose_png_name(stem: str, taken: set[str]) -> str:
    """Return the name of a PNG file that is not taken, if need be with a number, and add it to `taken`.

    Upper and lower case count as equal, as on some file systems.
    """
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    name = next(name for name in names if name.casefold() not in taken)
    taken.add(name.casefold())
    return f"{name}.png"


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; the new file then replaces `path` as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.vitkit.partial")  # hidden, and not used by other programs
    try:
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    mask = os.umask(0)
    os.umask(mask)
    temporary.chmod(0o666 & ~mask)  # safetensors creates files that only their owner can read
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises: ValueError, one line that starts with the path."""
    with prefix_errors(path):
        value = json.loads(path.read_text("utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"must hold names and values, got {value!r:.80}")
        return value


def write_json(path: Path, value: Mapping[str, Any], *, allow_nan: bool = True) -> None:
    """Write a JSON object, replacing the file. Surrogates, from names of files that are no text, are escaped."""
    with replace_file(path) as temporary:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=allow_nan)
        temporary.write_text(text + "\n", "utf-8", errors="backslashreplace")
