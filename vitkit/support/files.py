"""Writing files so that nothing is lost: new folders, free names, replacement in one step."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which then appears as `folder`, whole or not at all."""
    new_or_empty(folder)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
        whole = Path(beside) / "whole"
        whole.mkdir()
        yield whole
        if folder.exists():
            folder.rmdir()
        whole.rename(folder)


def new_or_empty(folder: Path) -> Path:
    if not folder.parent.is_dir() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ValueError(f"out must be new or empty, in a folder that exists, got out={folder}; nothing is overwritten")
    return folder


def free_name(stem: str, taken: set[str]) -> str:
    """The name of a file, with a number where it is taken; on some systems A and a are one file."""
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    name = next(name for name in names if name.casefold() not in taken)
    taken.add(name.casefold())
    return f"{name}.png"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
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
