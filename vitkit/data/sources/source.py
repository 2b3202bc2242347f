"""The interface of a source of images, and image files as one."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageFile

from vitkit.data.omissions import Omissions
from vitkit.data.order import Labels
from vitkit.data.preprocess import PictureError, decode_image, read_image, read_image_header

SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
COLUMNS = ("file_name", "label")
END = 4096  # bytes


class Source(ABC):
    """Images with one label each, an index into `class_names`, or with a set of labels each, a tuple of indices.

    A label is -1 where there is none. `omissions` counts what was left out when the source was listed.
    """

    def __init__(self, class_names: Sequence[str], labels: Labels) -> None:
        self.class_names = tuple(class_names)
        self.labels = labels
        self.omissions = Omissions()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def multilabel(self) -> bool:
        """True if each image has a set of labels."""
        return len(self.labels) > 0 and isinstance(self.labels[0], tuple)

    @abstractmethod
    def get_name(self, index: int) -> str:
        """Return the name of an image in messages: its path if it is a file."""

    @abstractmethod
    def read_content(self, index: int) -> bytes:
        """Return the bytes of an image's file, or of its pixels. Equal bytes are the same image."""

    def count_bytes(self, index: int) -> int:
        """Return the length of `read_content`."""
        return len(self.read_content(index))

    def read_end(self, index: int) -> bytes:
        """Return the last bytes of `read_content`, at most END. The first are alike for all images of one camera."""
        return self.read_content(index)[-END:]

    def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        """Decode the image. Args: at_least: see `preprocess.read_image`. Raises: PictureError."""
        try:
            content = self.read_content(index)
        except OSError as error:
            raise PictureError(f"picture must be readable, got picture={self.get_name(index)} ({error})") from None
        return decode_image(content, self.get_name(index), at_least)

    def read_header(self, index: int) -> ImageFile.ImageFile:
        """Return the image with its mode, without pixels. Raises: PictureError, also if `read_content` is pixels."""
        return read_image_header(BytesIO(self.read_content(index)))


class Files(Source):
    """Image files, given by their paths."""

    def __init__(self, files: Sequence[str], class_names: Sequence[str] = (), labels: Labels | None = None) -> None:
        super().__init__(class_names, [-1] * len(files) if labels is None else labels)
        self.files = files

    def get_name(self, index: int) -> str:
        return self.files[index]

    def read_content(self, index: int) -> bytes:
        return Path(self.files[index]).read_bytes()

    def count_bytes(self, index: int) -> int:
        return os.path.getsize(self.files[index])

    def read_end(self, index: int) -> bytes:
        with open(self.files[index], "rb", buffering=0) as file:
            return os.pread(file.fileno(), END, max(0, os.fstat(file.fileno()).st_size - END))

    def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return read_image(self.files[index], at_least)

    def read_header(self, index: int) -> ImageFile.ImageFile:
        return read_image_header(self.files[index])


def list_images(folder: Path) -> list[str]:
    """Return the image files below a folder, in the same order on every machine."""
    return list(walk_images(folder))


def walk_images(folder: Path, omissions: Omissions | None = None) -> Iterator[str]:
    """Yield the files of `list_images` one by one. Args: omissions: counts the other files."""
    return walk_files(folder, SUFFIXES, "images", Omissions() if omissions is None else omissions)


def walk_files(folder: Path, suffixes: tuple[str, ...], kind: str, omissions: Omissions) -> Iterator[str]:
    """Yield the files below a folder with one of the suffixes, in the same order on every machine; count the others.

    Args: kind: the plural of such files.
    Raises: ValueError for a folder that cannot be read.
    """
    for parent, inner, files in os.walk(folder, onerror=_refuse):
        omit_files(parent, inner, files, suffixes, kind, omissions)
        inner[:] = sorted(name for name in inner if name[0] != ".")
        for name in sorted(files):
            if name[0] != "." and name.lower().endswith(suffixes):
                yield f"{parent}/{name}"


def omit_files(
    parent: str,
    inner: Sequence[str],
    files: Sequence[str],
    suffixes: tuple[str, ...],
    kind: str,
    omissions: Omissions,
) -> None:
    """Count the files of one folder that a listing leaves out. Args: inner: the folders in it."""
    omissions.add("hidden files and folders", sorted(f"{parent}/{name}" for name in (*inner, *files) if name[0] == "."))
    others = [name for name in sorted(files) if name[0] != "." and not name.lower().endswith(suffixes)]
    omissions.add(f"files that are not {kind}", [f"{parent}/{name}" for name in others])


def _refuse(error: OSError) -> None:
    raise ValueError(f"every folder must be readable, got {error}")


def order_names(names: Iterable[str]) -> list[str]:
    """Sort class names; as numbers if all are integers, so that 10 follows 9."""
    names = sorted(names)
    return sorted(names, key=int) if all(re.fullmatch(r"-?[0-9]+", name) for name in names) else names
