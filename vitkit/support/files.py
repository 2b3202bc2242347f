"""Files and folders that are written as a whole or not at all, checks of output paths, JSON objects."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitkit.support.errors import format_few, prefix_errors

UNFINISHED = ".vitkit.unfinished"  # in a folder to which a command writes, or wrote when it was stopped


def require_new(path: Path, overwrite: bool = False, *, folder: bool = False, option: str = "out") -> Path:
    """Return the path of a file to write, or of a folder to write files to.

    A folder may be empty, or unfinished: left by a command that was stopped, whose files the next one removes.

    Args: overwrite: accept what exists. option: the name of the path in an error.
    Raises: ValueError if something exists that would be overwritten, or no file or folder can be there.
    """
    place = path.absolute()
    if folder:
        possible = next(part for part in (place, *place.parents) if part.exists()).is_dir()
    else:
        possible = place.parent.is_dir() and not place.is_dir()
    if not possible:
        rule = "a folder" if folder else "a file in a folder that exists"
        raise ValueError(f"{option} must be {rule}, got {option}={path}")
    if overwrite or not path.exists():
        return path
    if not folder:
        raise ValueError(f"{option} must be a new file, got {option}={path}; choose another, or add --overwrite")
    names = sorted(entry.name for entry in path.iterdir())
    if names and UNFINISHED not in names:
        raise ValueError(
            f"{option} must be a new or empty folder, got {option}={path}, which holds {format_few(names)}; "
            "choose another, or add --overwrite"
        )
    return path


@contextmanager
def create_folder(folder: Path, overwrite: bool = False, outdated: Iterable[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder to fill, which becomes `folder` as a whole or not at all.

    In a folder that is overwritten, files of the same names are replaced at the end, and others stay.

    Args: outdated: names of files that are removed if they are not written again.
    """
    folder = Path(os.path.realpath(require_new(folder, overwrite, folder=True)))  # a link stays
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as parent:
        temporary = Path(parent) / "whole"
        temporary.mkdir()
        yield temporary
        remove_unfinished(folder)
        (folder / UNFINISHED).unlink(missing_ok=True)
        if folder.exists() and any(folder.iterdir()):
            names = {path.name for path in temporary.iterdir()}
            if blocked := sorted(name for name in names.union(outdated) if (folder / name).is_dir()):
                rule = f"{folder} must hold no folder with the name of a file to replace"
                raise ValueError(f"{rule}, got {format_few(blocked)}; rename it, or choose another --out")
            for name in {*outdated} - names:
                (folder / name).unlink(missing_ok=True)
            for name in names:
                (temporary / name).replace(folder / name)
            return
        if folder.exists():
            folder.rmdir()
        temporary.rename(folder)


@contextmanager
def fill_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write files to. Until the end it is marked as unfinished: a stopped command may run again.

    The files of a stopped command are removed. A folder with other files, which is overwritten, gets no mark. A new
    folder that stays empty is removed.
    """
    new, mark, finished = not folder.exists(), folder / UNFINISHED, False
    folder.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder)
    before = {path.name for path in folder.iterdir()}
    if not before:
        mark.touch()
    try:
        yield folder
        finished = True
    finally:
        names = {path.name for path in folder.iterdir()}
        if finished or names == {mark.name}:
            mark.unlink(missing_ok=True)
        elif mark.exists():
            mark.write_bytes(b"\0".join(map(os.fsencode, names - before - {mark.name})))
        if new and not any(folder.iterdir()):
            folder.rmdir()


def remove_unfinished(folder: Path) -> None:
    """Remove the files of a stopped command that its mark lists. Others stay: of a killed command, or of the user."""
    mark = folder / UNFINISHED
    for name in map(os.fsdecode, mark.read_bytes().split(b"\0") if mark.exists() else ()):
        path = folder / name
        if path.name == name and path.is_file():
            path.unlink()


def remove_outdated(folder: Path, report: str, names: Iterable[str]) -> None:
    """Remove files of an earlier report from a folder, if its JSON file is there and names a source."""
    try:
        earlier = "source" in read_json(folder / report)
    except ValueError:
        return
    for name in names if earlier else ():
        (folder / name).unlink(missing_ok=True)


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
    """Write a JSON object, replacing the file."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=allow_nan) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, replacing it. Names of files that are not UTF-8 are escaped, see errors."""
    with replace_file(path) as temporary:
        temporary.write_text(text, "utf-8", errors="backslashreplace", newline="\n")
