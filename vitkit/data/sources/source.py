"""The interface of a source of images, and image files as one."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from io import BytesIO
from pathlib import Path, PurePath

from PIL import Image, ImageFile

from vitkit.data.omissions import Omissions
from vitkit.data.order import Labels
from vitkit.data.preprocess import (
    HEIF,
    PictureError,
    decode_image,
    open_lazily,
    read_image,
    read_image_header,
    register_heif,
)

# Of the formats that Pillow decodes itself: no icons, layers, films or scientific arrays, nor those of another program.
SUFFIXES = (
    *(".apng", ".avif", ".bmp", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".jpx", ".mpo"),
    *(".pbm", ".pcx", ".pgm", ".png", ".pnm", ".ppm", ".qoi", ".tga", ".tif", ".tiff", ".webp"),
    *HEIF,
)
# Those of them that begin with bytes of their own, so that a file without a suffix is recognised.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TIFF", "WEBP")
# Those that may have several pages or frames; a JPEG's (MPO) are previews and depth maps of the same picture.
SEQUENCES = ("AVIF", "GIF", "PNG", "TIFF", "WEBP")
STILLS = (".bmp", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pgm", ".ppm")  # of formats with one
MAX_OPENED = 500  # PNG files, and other files, that `count_sequences` opens: more would delay the start
# Files and folders that archivers, file systems and desktops put among a user's, in lower case.
SYSTEM = {
    *("__macosx", "lost+found", "@eadir", "#recycle", "@recycle", "#snapshot", "$recycle.bin"),
    *("system volume information", "thumbs.db", "ehthumbs.db", "desktop.ini", "__pycache__"),
}
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

    def get_relative_name(self, index: int) -> str:
        """Return the name of an image relative to its source, which stays the same where the source is moved."""
        return self.get_name(index)

    @abstractmethod
    def read_content(self, index: int) -> bytes:
        """Return the bytes of an image's file, or of its pixels. Equal bytes are the same image."""

    def compute_digest(self, index: int) -> int:
        """Return a hash of `read_content`, of 64 bits and never 0."""
        return hash_content(self.read_content(index))

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

    def is_sequence(self, index: int) -> bool:
        """Return whether an image's file has pages or frames after the first, which `read_image` returns."""
        try:
            return is_sequence(BytesIO(self.read_content(index)))
        except (OSError, PictureError):
            return False


class Files(Source):
    """Image files, given by their paths. Args: root: the folder that their names are relative to."""

    def __init__(
        self,
        files: Sequence[str],
        class_names: Sequence[str] = (),
        labels: Labels | None = None,
        root: str | Path = "",
    ) -> None:
        super().__init__(class_names, [-1] * len(files) if labels is None else labels)
        self.files, self.root = files, os.path.join(root, "")

    def get_name(self, index: int) -> str:
        return self.files[index]

    def get_relative_name(self, index: int) -> str:
        return self.files[index].removeprefix(self.root)

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

    def is_sequence(self, index: int) -> bool:
        return is_sequence(self.files[index])


def hash_content(content: bytes) -> int:
    """Return a hash of 64 bits that is never 0."""
    return int.from_bytes(blake2b(content, digest_size=8).digest()) or 1


def is_sequence(file: str | BytesIO) -> bool:
    """Return whether a file has pages or frames after the first, from its headers alone; False if it is damaged."""
    try:
        with open_lazily(file, SEQUENCES) as image:
            return bool(getattr(image, "is_animated", False))
    except Exception:  # decoders raise many kinds
        return False


def count_sequences(source: Source, omissions: Omissions) -> None:
    """Count the files with several pages or frames. Of many files only some are opened, evenly spaced.

    PNG files are looked at apart: many sets have many, and few are animated.
    """
    candidates: dict[bool, list[int]] = {False: [], True: []}
    for index in range(len(source)):
        name = source.get_name(index).lower()
        if not name.endswith(STILLS):
            candidates[name.endswith(".png")].append(index)
    for indices in candidates.values():
        opened = indices[:: -(-len(indices) // MAX_OPENED) or 1]
        part = f" ({len(opened):,} of {len(indices):,} files were opened)" if len(opened) < len(indices) else ""
        matches = [source.get_name(index) for index in opened if source.is_sequence(index)]
        omissions.add(f"files with several pages or frames, of which the first is read{part}", matches)


def list_images(folder: Path) -> list[str]:
    """Return the image files below a folder, in the same order on every machine."""
    return list(walk_images(folder))


def walk_images(folder: Path, omissions: Omissions | None = None, exclude: Sequence[str] = ()) -> Iterator[str]:
    """Yield the files of `list_images` one by one, but for those of `exclude`, see `open_source`.

    Args: omissions: counts the other files.
    """
    return walk_files(folder, SUFFIXES, "images", Omissions() if omissions is None else omissions, exclude)


def walk_files(
    folder: Path, suffixes: tuple[str, ...], kind: str, omissions: Omissions, exclude: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the files below a folder with one of the suffixes, in the same order on every machine; count the others.

    Args: kind: the plural of such files. exclude: see `open_source`.
    Raises: ValueError for a folder that cannot be read.
    """
    for parent, inner, files in os.walk(folder, onerror=_refuse):
        for name in choose_files(parent, inner, files, suffixes, kind, omissions, exclude):
            yield f"{parent}/{name}"


def choose_files(
    parent: str,
    inner: list[str],
    files: Sequence[str],
    suffixes: tuple[str, ...],
    kind: str,
    omissions: Omissions,
    exclude: Sequence[str],
) -> list[str]:
    """Return the files of one folder that a listing takes, in order, and count the others.

    Args: inner: the folders in it; those that are left out are removed.
    """
    entries: dict[str, list[str]] = {"": []}  # by the reason for leaving them out
    for name in sorted(inner):
        path = f"{parent}/{name}"
        link = "links to folders, not followed" if os.path.islink(path) else ""
        entries.setdefault(explain_omission(path, exclude) or link, []).append(name)
    inner[:] = entries.pop("")
    for name in sorted(files):
        path = f"{parent}/{name}"
        reason = explain_omission(path, exclude) or _check_format(path, suffixes, kind)
        entries.setdefault(reason, []).append(name)
    chosen = entries.pop("", [])
    for reason, names in entries.items():
        omissions.add(reason, [f"{parent}/{name}" for name in names])
    return chosen


def explain_omission(path: str, exclude: Sequence[str]) -> str:
    """Return the reason for leaving out a file or folder because of its name; "" if there is none."""
    name = path.rpartition("/")[2]
    if name.startswith(".") and name not in (".", ".."):
        return "hidden files and folders"
    if name.lower() in SYSTEM:
        return "files and folders of the operating system"
    return "files and folders matched by exclude" if any(map(PurePath(path).match, exclude)) else ""


def parse_patterns(exclude: str | Sequence[str]) -> list[str]:
    """Return one or several patterns as a list. Raises: ValueError for a pattern that names no file."""
    patterns = [exclude] if isinstance(exclude, str) else [*exclude]
    if not all(PurePath(pattern).parts for pattern in patterns):
        raise ValueError(f"exclude must hold patterns of files, got {exclude=}")
    return patterns


def is_excluded(path: str, exclude: Sequence[str]) -> bool:
    """Return whether a path relative to its source, or a folder in it, matches a pattern."""
    parts = PurePath(path), *PurePath(path).parents
    return any(part.match(pattern) for part in parts for pattern in exclude)


def _check_format(path: str, suffixes: tuple[str, ...], kind: str) -> str:
    suffix = os.path.splitext(path)[1].lower()
    if suffix in HEIF and not register_heif():
        return "pictures in HEIC, read after pip install pillow-heif"
    return "" if suffix in suffixes or (not suffix and holds_image(path)) else f"files other than {kind}"


def holds_image(path: str) -> bool:
    """Return whether the first bytes of a file are those of an image."""
    if not os.path.isfile(path):  # a pipe would wait for its other end
        return False
    try:
        with open_lazily(path, FORMATS):
            return True
    except Exception:  # decoders raise many kinds
        return False


def _refuse(error: OSError) -> None:
    raise ValueError(f"every folder must be readable, got {error}")


def order_names(names: Iterable[str]) -> list[str]:
    """Sort class names; as numbers if all are integers, so that 10 follows 9."""
    names = sorted(names)
    return sorted(names, key=int) if all(re.fullmatch(r"-?[0-9]+", name) for name in names) else names
