"""Where samples come from: one interface, one dispatch, a file for each kind of source."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from vitkit.data.labels import ordered
from vitkit.data.opening import Kinds, beside, opened, tables_and_shards
from vitkit.data.order import Labels
from vitkit.preprocess import PictureError, decode, read
from vitkit.support.errors import few
from vitkit.support.progress import progress

SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


COLUMNS = ("file_name", "label")


END = 4096  # bytes


SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


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

    def end(self, index: int) -> bytes:
        """The last bytes of `content`, at most END; unlike the first they tell pictures of one camera apart."""
        return self.content(index)[-END:]

    def picture(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        """Args: at_least: as in `preprocess.read`. Raises: PictureError where it cannot be read."""
        try:
            content = self.content(index)
        except OSError as error:
            raise PictureError(f"picture must be readable, got picture={self.name(index)} ({error})") from None
        return decode(content, self.name(index), at_least)


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

    def end(self, index: int) -> bytes:
        with open(self.files[index], "rb", buffering=0) as file:
            return os.pread(file.fileno(), END, max(0, os.fstat(file.fileno()).st_size - END))

    def picture(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return read(self.files[index], at_least)


def class_folders(root: Path) -> Files:
    """Class folders in sorted order; the files below each, at any depth, are its pictures. Hidden ones do not count.

    Raises: ValueError that lists everything wrong with the folder.
    """
    classes = ordered(folders(root))
    if classes and set(classes) <= SPLITS:
        raise ValueError(f"source must hold a folder for each class, got one for each split, {classes}; source={root}")
    files: list[list[str]] = [[] for _ in classes]
    problems = []
    for label, file in progress(_labelled_files(root, classes), "listing pictures"):
        files[label].append(file)
    if len(classes) < 2:
        loose = "" if classes else "; without folders take a metadata.csv (file_name,label), or unlabelled"
        problems.append(f"source must hold at least two folders, one for each class, got classes={classes}{loose}")
    if empty := [name for name, found in zip(classes, files, strict=True) if not found]:
        problems.append(f"every class folder must hold a picture ({' '.join(SUFFIXES)}), got none in {empty}")
    if problems:
        raise ValueError(f"{'; '.join(problems)}; source={root}")
    labels = [label for label, found in enumerate(files) for _ in found]
    return Files([file for found in files for file in found], classes, labels)


def folders(root: Path) -> list[str]:
    return [entry.name for entry in os.scandir(root) if entry.name[0] != "." and entry.is_dir()]


def _labelled_files(root: Path, classes: Sequence[str]) -> Iterator[tuple[int, str]]:
    for label, name in enumerate(classes):
        for file in pictures_below(root / name):
            yield label, file


def pictures(folder: Path) -> list[str]:
    """The picture files below a folder, in an order that every machine agrees on."""
    return list(pictures_below(folder))


def pictures_below(folder: Path) -> Iterator[str]:
    """What `pictures` lists, as soon as they are found."""
    for parent, inner, files in os.walk(folder, onerror=_refuse):
        inner[:] = sorted(name for name in inner if name[0] != ".")
        for name in sorted(files):
            if name[0] != "." and name.lower().endswith(SUFFIXES):
                yield f"{parent}/{name}"


def _refuse(error: OSError) -> None:
    raise ValueError(f"every class folder must be readable, got {error}")


def open_source(name: str, columns: tuple[str, str] = COLUMNS) -> Source:
    """A built-in set by its name, a folder, a table, shards, or hf:NAME; a folder called digits is written ./digits.

    In a folder the table metadata.csv, .jsonl or .parquet counts, else shards, else class folders.

    Args: columns: what a table or data set calls the picture and its label.
    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    from vitkit.data import hub, shards, tables
    from vitkit.data.built_in import BUILT_IN

    return opened(
        name,
        Kinds(
            BUILT_IN,
            hub=lambda name: hub.open_hub(name, columns),
            folder=lambda root: open_folder(root, columns),
            shards=lambda paths: shards.index(paths, columns[1]),
            table=lambda path: tables.open_table(path, columns),
        ),
    )


def open_unlabelled(name: str, columns: tuple[str, str] = COLUMNS) -> Source:
    """A picture, all pictures below any folder, or those of what else `open_source` understands; labels are -1.

    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    from vitkit.data import shards
    from vitkit.data.built_in import BUILT_IN

    path = Path(name).expanduser()
    if name and name not in BUILT_IN and path.is_dir():
        if files := list(progress(pictures_below(path), "listing pictures")):
            return Files(files, (), [-1] * len(files))
        if not any(entry.endswith(shards.SUFFIX) for entry in os.listdir(path)):
            raise ValueError(f"source must hold pictures ({' '.join(SUFFIXES)}) or shards, got none in source={name}")
    if path.suffix.lower() in SUFFIXES:
        if not path.is_file():
            raise ValueError(f"source must be a picture that exists, got source={name}{beside(path)}")
        return Files([str(path)], (), [-1])
    source = open_source(name, columns)
    source.classes, source.labels = (), [-1] * len(source)
    return source


def open_folder(root: Path, columns: tuple[str, str]) -> Source:
    """Raises: ValueError where a folder is two kinds of source at once."""
    from vitkit.data import shards, tables

    listed, tars = tables_and_shards(root)
    # A table may lie beside the folders that its pictures are in.
    classes = [name for name in folders(root) if any(pictures_below(root / name))] if tars and not listed else []
    if len(found := [*listed, *tars[:1], *(f"{name}/" for name in classes[:1])]) > 1:
        raise ValueError(f"source must be one of a table, shards and class folders, got {few(found)}; source={root}")
    if listed:
        return tables.open_table(root / listed[0], columns)
    if tars:
        return shards.index([str(root / name) for name in tars], columns[1])
    return class_folders(root)
