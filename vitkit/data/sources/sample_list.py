"""The samples of a source with their raw annotations, before an annotation class parses these."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vitkit.data.omissions import Omissions
from vitkit.data.sources.source import Files, Source
from vitkit.support.errors import format_few
from vitkit.support.progress import track_progress

Columns = tuple[str, str | None]  # of the image and of the annotation, None where it is not read


@dataclass(kw_only=True)
class Listing(ABC):
    """What a source holds.

    Args:
        title: what errors call the source.
        places: what errors call the annotation of each sample.
        annotations: the raw one of each sample: text, a number, or a list of them; an exception is none that can be.
        problems: what is wrong with the source itself.
        class_names: where given, annotations that are labels are indices of these.
        groups: keys of each sample; a split keeps samples that share one together. None where the annotation decides.
        delimited: several labels of a sample are one text, separated by |.
        sparse: samples without annotation are left out where others have one.
        empty: the error where there are no samples.
        omissions: what the listing passed over.
    """

    title: str
    places: list[str] = field(default_factory=list)
    annotations: list[object] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    class_names: Sequence[str] = ()
    groups: Sequence[Iterable[Hashable]] | None = None
    delimited: bool = False
    sparse: bool = False
    empty: str
    omissions: Omissions = field(default_factory=Omissions)

    def key(self, row: int) -> Hashable:
        """Return what samples of one image have in common."""
        return row

    def check(self, rows: Sequence[int]) -> list[str]:
        """Return what is wrong with the images of these samples."""
        return []

    @abstractmethod
    def images(self, rows: Sequence[int]) -> Source:
        """Return the images of these samples, of which nothing is wrong."""


@dataclass(kw_only=True)
class FileListing(Listing):
    """Files that a folder was found to hold."""

    files: Sequence[str]

    def images(self, rows: Sequence[int]) -> Source:
        return Files([self.files[row] for row in rows])


@dataclass(kw_only=True)
class TableListing(Listing):
    """Files that rows name, relative to a folder."""

    folder: Path
    names: list[object] = field(default_factory=list)
    empty: str = "a table must have rows, got none"

    def add(self, place: str, name: object, annotation: object) -> None:
        self.places.append(place)
        self.names.append(name)
        self.annotations.append(annotation)

    def key(self, row: int) -> Hashable:
        name = self._name(row)
        return os.path.abspath(self.folder / name) if name else row

    def check(self, rows: Sequence[int]) -> list[str]:
        problems = []
        if unnamed := [self.places[row] for row in rows if not self._name(row)]:
            problems.append(f"every row must name a picture, got none in {format_few(unnamed)}")
        paths = [self._path(row) for row in rows if self._name(row)]
        absent = [path for path in track_progress(paths, "looking for pictures") if not os.path.isfile(path)]
        if absent:
            problems.append(
                f"pictures must exist, got {len(absent):,} of {len(paths):,} that do not: {format_few(absent)}"
            )
        return problems

    def images(self, rows: Sequence[int]) -> Source:
        return Files([self._path(row) for row in rows])

    def _name(self, row: int) -> str:
        name = self.names[row]
        return name.strip() if isinstance(name, str) else ""

    def _path(self, row: int) -> str:
        return os.path.join(self.folder, self._name(row))


@dataclass(kw_only=True)
class SourceListing(Listing):
    """A source as it is."""

    source: Source
    empty: str = "a source must hold samples, got none"

    def images(self, rows: Sequence[int]) -> Source:
        return self.source


class FolderForm(NamedTuple):
    """How a folder itself holds images and what is said of them, without a table or shards.

    Args:
        name: what errors call it.
        find: a file that only this form has, if there is one beside a table (True) or shards (False).
        list_samples: the samples of such a folder.
        first: such a folder is read as this form even where there is a table or shards.
    """

    name: str
    find: Callable[[Path, bool], str | None]
    list_samples: Callable[[Path], Listing]
    first: bool = False
