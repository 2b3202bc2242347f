"""A folder's pictures in a database that answers: what is like this text, what is like this picture."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitkit.data.preprocess import read
from vitkit.retrieval import approximate, near_duplicates
from vitkit.retrieval.database_errors import readable
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.query import DUPLICATE, Match, Query, search
from vitkit.retrieval.store import Store
from vitkit.retrieval.update import Indexed, agreeing, forget, run
from vitkit.retrieval.writer import Counts, IndexReading, Job, here
from vitkit.support.devices import get_device


class Unreadable(NamedTuple):
    file: Path
    reason: str


class Collection:
    """Pictures below folders, and their captions, searched by a CLIP: `index` makes it and keeps it up to date.

    Args:
        path: of the database, a folder.
        model: as `open_model` takes it, or one that is open already; a collection knows where its model was.
        device: "auto" is the fastest here.
    """

    def __init__(self, path: str | Path, model: str | Path | Embedder | None = None, *, device: str = "auto") -> None:
        self.path = Path(path).expanduser()
        self.model = model
        self.device = device
        self._embedder: Embedder | None = None
        self._store: Store | None = None

    def __len__(self) -> int:
        """How many pictures it has."""
        return self.store.items.count_rows("line = 0")

    @property
    def store(self) -> Store:
        """As it is now. Raises: ValueError where there is no collection yet."""
        if self._store is None:
            if not Store.exists(self.path):
                raise ValueError(f"db must be a collection, got {self.path}; vitkit index makes one")
            self._store = Store(self.path)
        self._store.latest()
        return self._store

    @property
    def embedder(self) -> Embedder:
        """Raises: ValueError for another model than the collection's."""
        if self._embedder is None:
            store = self.store  # first: without a collection, the model does not matter
            self._embedder = agreeing(self._opened(), store, self.path)
        return self._embedder

    def index(
        self,
        folders: str | Path | Iterable[str | Path],
        *,
        rehash: bool = False,
        reading: IndexReading | None = None,
        embed: Callable[[Job], Counts] = here,
        above: int = approximate.ROWS,
    ) -> Indexed:
        """Bring it up to date with folders. What lies below others stays as it is.

        Killed at any moment and called again, it goes on. What did not change is not read again, and what only moved is
        not embedded again.

        Args:
            rehash: read also files whose size and time are as they were.
            embed: `here`, or on several devices `vitkit.fit.distributed_embedding.Ranks(devices)`.
            above: from so many rows on there is an index for approximate search.
        """
        return run(self.path, folders, self._opened, embed, reading or IndexReading(), rehash, above)

    def forget(self, folders: str | Path | Iterable[str | Path]) -> int:
        """Take out what was indexed below folders, such as one that was renamed; gives back of how many files."""
        return forget(Path(self.store.path), folders)

    def search(
        self,
        query: str | Path | Image.Image,
        top: int = 10,
        *,
        where: str = "",
        captions: bool = False,
        near: int | float | None = None,
    ) -> list[Match]:
        """The nearest first: pictures, or captions, for a text or a picture (a Path, or the picture itself).

        Args:
            where: a condition in SQL on path, caption, width, height, size, mtime; it holds for all that is found.
            near: cosine from which on only the first of near-duplicates is shown, such as 0.94.
        """
        if not isinstance(query, str | Path | Image.Image):
            raise ValueError(f"query must be one text, the Path of a picture, or a picture, got {type(query).__name__}")
        if isinstance(query, str):
            vector, kind = self.embedder.text(query), "text"
        else:
            vector, kind = self.embedder.picture(read(query) if isinstance(query, Path) else query), "picture"
        with readable(self.path):
            return search(self.store, Query(vector, kind, captions, where), top, near)

    def duplicates(self, near: int | float = DUPLICATE, *, where: str = "") -> list[list[Match]]:
        """Groups of pictures that are nearly the same, the largest first; each begins with the one of most pixels."""
        with readable(self.path):
            return near_duplicates.group_duplicates(self.store, near, where, get_device(self.device))

    def unreadable(self) -> list[Unreadable]:
        """Files that could not be read, and why."""
        with readable(self.path):
            rows = self.store.unreadable.search().select(["file", "reason"]).limit(None).to_arrow().to_pylist()
        return sorted(Unreadable(Path(os.fsdecode(row["file"])), row["reason"]) for row in rows)

    def _opened(self) -> Embedder:
        if self._embedder is None:
            if self.model is None and not Store.exists(self.path):
                raise ValueError(f"model must be given for a new collection, got none for {self.path}")
            found = self.model if isinstance(self.model, Embedder) else self._open(self.model)
            self._embedder = found.to(get_device(self.device))
        return self._embedder

    def _open(self, place: str | Path | None) -> Embedder:
        try:
            return Embedder.open(place or self.store.about["model"])
        except ValueError as error:
            hint = "" if place else f"; {self.path} was made with it: say where the model is now (--model)"
            raise ValueError(f"{error}{hint}") from error
