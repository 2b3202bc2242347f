"""The samples of a source with their raw annotations, before an annotation class parses these."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vitkit.data.omissions import Omissions
from vitkit.data.sources.source import Files, Source, is_excluded
from vitkit.support.errors import format_few
from vitkit.support.progress import track_progress

Columns = tuple[str | None, ...]  # of the image and of the annotation: None if it is not read, or one for each class
ONES = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def refuse_repeated_columns(source: str | Path, titles: Iterable[str]) -> None:
    if repeated := [title for title, number in Counter(titles).items() if number > 1]:
        raise ValueError(f"columns must have a name each, got several called {format_few(repeated)}; source={source}")


def join_cells(columns: Columns, cells: Sequence[object]) -> object:
    """Return a row's raw annotation: its cell, or of a column for each class the indices of those with a 1.

    Args: columns, cells: those of the annotation.
    """
    if len(columns) < 2:
        return cells[0] if cells else None
    values = [ONES.get(str(cell).strip().lower()) for cell in cells]
    if None in values:
        place = values.index(None)
        return ValueError(f"{columns[place]}={cells[place]}, not 0 or 1")
    return [index for index, value in enumerate(values) if value]


def name_classes(columns: Columns) -> list[str]:
    """Return the class names if there is a column for each class."""
    return [name for name in columns[1:] if name] if len(columns) > 2 else []


@dataclass(kw_only=True)
class Listing(ABC):
    """The samples of a source and their raw annotations.

    Args:
        title: the name of the source in errors.
        places: the name of each sample's annotation in errors.
        annotations: of each sample: text, a number, or a list of them; an exception is an invalid one.
        problems: the faults of the source itself, for the error.
        class_problems: classes that are too few or have no images, which a validation set may have.
        class_names: if given, labels are indices of these.
        groups: keys of each sample; a split keeps samples that share a key together. None if the annotation decides.
        delimited: several labels of a sample are one text, separated by |.
        empty: the error if there are no samples.
        hint: the way to name what is not recognised, at the end of an error.
        omissions: the files and samples that were left out.
    """

    title: str
    places: list[str] = field(default_factory=list)
    annotations: list[object] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    class_problems: list[str] = field(default_factory=list)
    class_names: Sequence[str] = ()
    groups: Sequence[Iterable[Hashable]] | None = None
    delimited: bool = False
    empty: str
    hint: str = ""
    omissions: Omissions = field(default_factory=Omissions)

    def get_key(self, row: int) -> Hashable:
        """Return a key that is equal for the samples of one image."""
        return row

    def find_image_problems(self, rows: Sequence[int], skip_absent: bool) -> list[str]:
        """Return the faults of these samples' images. Args: skip_absent: accept that some do not exist."""
        return []

    def leave_out(self, exclude: Sequence[str]) -> None:
        """Leave out the samples whose paths match a pattern. Raises: ValueError for samples without paths."""
        raise ValueError(f"exclude must be left out for pictures without paths, got {exclude}; source={self.title}")

    @abstractmethod
    def open_images(self, rows: Sequence[int]) -> Source:
        """Return the images of these samples, which have no faults."""


@dataclass(kw_only=True)
class FileListing(Listing):
    """The files that a folder holds."""

    files: Sequence[str]

    def leave_out(self, exclude: Sequence[str]) -> None:
        """Leave the samples as they are: they were left out when the files were listed."""

    def open_images(self, rows: Sequence[int]) -> Source:
        return Files([self.files[row] for row in rows], root=self.title)


@dataclass(kw_only=True)
class TableListing(Listing):
    """Files named by the rows of a table, relative to a folder."""

    folder: Path
    names: list[object] = field(default_factory=list)
    empty: str = "a table must have rows, got none"

    def add(self, place: str, name: object, annotation: object) -> None:
        self.places.append(place)
        self.names.append(name)
        self.annotations.append(annotation)

    def get_key(self, row: int) -> Hashable:
        name = self._name(row)
        return os.path.abspath(self.folder / name) if name else row

    def leave_out(self, exclude: Sequence[str]) -> None:
        names = [self._relative_name(row) for row in range(len(self.names))]
        chosen = [row for row, name in enumerate(names) if not is_excluded(name, exclude)]
        self.omissions.add("rows matched by exclude", [name for name in names if is_excluded(name, exclude)])
        self.places = [self.places[row] for row in chosen]
        self.names = [self.names[row] for row in chosen]
        self.annotations = [self.annotations[row] for row in chosen]

    def find_image_problems(self, rows: Sequence[int], skip_absent: bool) -> list[str]:
        problems = []
        if unnamed := [self.places[row] for row in rows if not self._name(row)]:
            problems.append(f"every row must name a picture, got none in {format_few(unnamed)}")
        paths = [self._path(row) for row in rows if self._name(row)]
        absent = [path for path in track_progress(paths, "looking for pictures") if not os.path.isfile(path)]
        if absent and not (skip_absent and len(absent) < len(paths)):
            problems.append(
                f"pictures must exist, got {len(absent):,} of {len(paths):,} that do not: {format_few(absent)}"
            )
        return problems

    def open_images(self, rows: Sequence[int]) -> Source:
        return Files([self._path(row) for row in rows], root=self.folder)

    def _name(self, row: int) -> str:
        name = self.names[row]
        name = name.strip() if isinstance(name, str) else ""
        # Windows writes backslashes, which elsewhere may be in a name.
        return name if "\\" not in name or os.path.exists(self.folder / name) else name.replace("\\", "/")

    def _relative_name(self, row: int) -> str:
        """Return the path below the folder, or the name of a file elsewhere."""
        path = Path(self._path(row))
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else path.name

    def _path(self, row: int) -> str:
        return os.path.join(self.folder, self._name(row))


@dataclass(kw_only=True)
class SourceListing(Listing):
    """A source that is open already."""

    source: Source
    empty: str = "a source must hold samples, got none"

    def open_images(self, rows: Sequence[int]) -> Source:
        return self.source


class FolderForm(NamedTuple):
    """A form in which a folder holds images and annotations without a table or shards.

    Args:
        name: of the form in errors.
        find_file: returns a file that only this form has, in a folder with a table (True) or shards (False).
        list_samples: returns the samples of such a folder without those that match patterns.
        first: such a folder is read in this form even if it holds a table or shards.
    """

    name: str
    find_file: Callable[[Path, bool, Sequence[str]], str | None]
    list_samples: Callable[[Path, Sequence[str]], Listing]
    first: bool = False
