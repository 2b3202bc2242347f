"""Where labelled pictures come from. `open_source` finds what a name means; each kind has a file of its own."""

import difflib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from vitkit.data.order import Labels
from vitkit.preprocess import decode, read

SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
COLUMNS = ("file_name", "label")


class Source(ABC):
    """Pictures with one label each, an index into `classes`, or with a set of them each, a tuple of indices."""

    def __init__(self, classes: Sequence[str], labels: Labels) -> None:
        self.classes = tuple(classes)
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def several(self) -> bool:
        """Whether a picture has a set of labels."""
        return len(self.labels) > 0 and isinstance(self.labels[0], tuple)

    @abstractmethod
    def name(self, index: int) -> str:
        """What a message calls this picture; a path where there is a file."""

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The bytes of its file, or those that its pixels are; equal bytes are the same picture."""

    def length(self, index: int) -> int:
        """How many bytes `content` has."""
        return len(self.content(index))

    def picture(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        """Args: at_least: as in `preprocess.read`. Raises: PictureError where it cannot be read."""
        return decode(self.content(index), self.name(index), at_least)


class Files(Source):
    """Picture files, by their paths."""

    def __init__(self, files: Sequence[str], classes: Sequence[str], labels: Labels) -> None:
        super().__init__(classes, labels)
        self.files = files

    def name(self, index: int) -> str:
        return self.files[index]

    def content(self, index: int) -> bytes:
        return Path(self.files[index]).read_bytes()

    def length(self, index: int) -> int:
        return os.path.getsize(self.files[index])

    def picture(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return read(self.files[index], at_least)


def class_folders(root: Path) -> Files:
    """Class folders in sorted order; the files below each, at any depth, are its pictures. Hidden ones do not count.

    Raises: ValueError that lists everything wrong with the folder.
    """
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != ".")
    files = [pictures(root / name) for name in classes]
    problems = []
    if len(classes) < 2:
        problems.append(f"source must hold at least two folders, one for each class, got classes={classes}")
    if empty := [name for name, found in zip(classes, files, strict=True) if not found]:
        problems.append(f"every class folder must hold a picture ({' '.join(SUFFIXES)}), got none in {empty}")
    if problems:
        raise ValueError(f"{'; '.join(problems)}; source={root}")
    labels = [label for label, found in enumerate(files) for _ in found]
    return Files([file for found in files for file in found], classes, labels)


def pictures(folder: Path) -> list[str]:
    """The picture files below a folder, in an order that every machine agrees on."""
    found = []
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        found += [f"{parent}/{name}" for name in sorted(files) if name[0] != "." and name.lower().endswith(SUFFIXES)]
    return found


def _refuse(error: OSError) -> None:
    raise ValueError(f"every class folder must be readable, got {error}")


def require(package: str, feature: str, extra: str = "demo") -> Path:
    """The folder of an optional package, found without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(f'{feature} must find the package {package}, which is missing; pip install "vitkit[{extra}]"')
    return Path(spec.origin).parent


def open_source(name: str, columns: tuple[str, str] = COLUMNS) -> Source:
    """A built-in set by its name, else a folder of class folders; a folder called digits is written ./digits.

    Args: columns: what a table calls the picture and its label.
    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    from vitkit.data.built_in import BUILT_IN

    if name in BUILT_IN:
        return BUILT_IN[name]()
    root = Path(name).expanduser()
    if name and root.is_dir():
        return class_folders(root)
    if os.sep in name:
        raise ValueError(f"source must be a folder that exists, got source={name}")
    close = difflib.get_close_matches(name, BUILT_IN, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"source must be a folder or one of {', '.join(BUILT_IN)}, got source={name}{hint}")
