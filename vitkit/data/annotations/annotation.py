"""The interface of annotations: from the raw annotations of a source to targets."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from vitkit.data.sources.sample_list import Columns, FolderForm, Listing
from vitkit.data.sources.source import SUFFIXES, Source

T = TypeVar("T")
Members = Callable[[str], bytes | None]  # from an extension to the content of that member of a shard's sample


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """The samples of a listing to keep, the faults of their annotations, and the function that attaches targets."""

    rows: Sequence[int]
    problems: list[str]
    attach: Callable[[Source], T]


class Annotation(ABC, Generic[T]):
    """A kind of annotation, which parses raw annotations to targets. T: a source's images with them.

    It defines equal targets, the samples that a split keeps together, and the columns and members of a source that hold
    it.
    """

    columns: ClassVar[Columns]  # of a table, unless others are named
    folder: ClassVar[FolderForm]
    members: ClassVar[str]  # of a shard that hold it, in words
    sample: ClassVar[str] = "picture"  # the content of a sample, in messages
    suffixes: ClassVar[Sequence[str]] = SUFFIXES  # of the member of a shard that holds it
    optional = False  # True if a source may have none

    def prepare(self, listing: Listing) -> Listing:
        """Return the listing in the form that this annotation parses."""
        return listing

    @abstractmethod
    def parse(self, listing: Listing) -> Parsed[T]:
        """Parse all raw annotations and collect all problems."""

    @abstractmethod
    def split(self, target: T, folds: int, fold: int) -> tuple[list[int], list[int]]:
        """Return the samples outside and inside one of `folds` parts, which never change.

        Samples of one group are in one part. Raises: ValueError if there are too few for so many parts.
        """

    def choose_columns(self, columns: Columns) -> Columns:
        """Return the columns to read if the user names these. Raises: ValueError for another number."""
        if len(columns) != 2:
            raise ValueError(f"columns must be two, of the picture and its annotation, got columns={list(columns)}")
        return columns

    @abstractmethod
    def find_columns(self, features: Mapping[str, object], column: str) -> list[str]:
        """Return the columns of a `datasets` table that can be this annotation. Args: column: the requested one."""

    @abstractmethod
    def read_members(self, content: Members, column: str) -> object:
        """Return the raw annotation of a sample in a shard, None without one. Args: column: a key or an extension."""
