"""A collection of pictures in a database, searched by text and by picture."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitkit.data.preprocess import read_image
from vitkit.retrieval import approximate, near_duplicates
from vitkit.retrieval.database_errors import explain_read_errors
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.query import Match, MatchGroup, Query, search_store
from vitkit.retrieval.store import Store
from vitkit.retrieval.update import IndexSummary, check_model, remove_folders, update_collection
from vitkit.retrieval.writer import IndexCounts, IndexJob, IndexReading, embed_here
from vitkit.support.devices import get_device
from vitkit.support.extras import require_package


class UnreadableFile(NamedTuple):
    file: Path
    reason: str


class Collection:
    """The pictures below folders, and their captions, embedded by a CLIP. `index` creates it and keeps it up to date.

    Args:
        path: folder of the database.
        model: as for `open_model`, or an open one (default: the one that the collection was embedded with).
        device: "auto" is the fastest one available.

    Raises: ImportError without the package lancedb.
    """

    def __init__(self, path: str | Path, model: str | Path | Embedder | None = None, *, device: str = "auto") -> None:
        require_package("lancedb", "a collection", "retrieval")
        self.path = Path(path).expanduser()
        self.model = model
        self.device = device
        self._embedder: Embedder | None = None
        self._store: Store | None = None

    def __len__(self) -> int:
        """Return the number of pictures."""
        return self.store.items.count_rows("line = 0")

    @property
    def store(self) -> Store:
        """The latest version of the tables. Raises: ValueError if there is no collection yet."""
        if self._store is None:
            if not Store.exists(self.path):
                raise ValueError(f"db must be a collection, got {self.path}; vitkit index creates one")
            self._store = Store(self.path)
        self._store.refresh()
        return self._store

    @property
    def embedder(self) -> Embedder:
        """The collection's model. Raises: ValueError if it is another one."""
        if self._embedder is None:
            store = self.store  # before the model is opened: it raises if there is no collection
            self._embedder = check_model(self._open_embedder(), store, self.path)
        return self._embedder

    def index(
        self,
        folders: str | Path | Iterable[str | Path],
        *,
        rehash: bool = False,
        reading: IndexReading | None = None,
        embed: Callable[[IndexJob], IndexCounts] = embed_here,
        above: int = approximate.MIN_ROWS,
        columns: tuple[str, str] | None = None,
        exclude: str | Sequence[str] = (),
    ) -> IndexSummary:
        """Bring the collection up to date with folders. Pictures below other folders stay as they are.

        It may be killed at any moment: the next call continues. Unchanged files are not read again, and moved files are
        not embedded again.

        Args:
            rehash: read also files whose size and time did not change.
            embed: `embed_here`, or `vitkit.fit.distributed_embedding.DistributedEmbedding` for several devices.
            above: number of rows from which an index for approximate search is built.
            columns: the columns of a table or data set that hold the image and its captions.
            exclude: patterns, one or several, of files and folders to leave out, see `open_source`. Those that were
                indexed are removed.
        """
        return update_collection(
            self.path, folders, self._open_embedder, embed, reading or IndexReading(), rehash, above, columns, exclude
        )

    def forget(self, folders: str | Path | Iterable[str | Path]) -> int:
        """Remove the pictures of folders, such as a renamed one, from the collection; return the number of files."""
        return remove_folders(Path(self.store.path), folders)

    def search(
        self,
        query: str | Path | Image.Image,
        top: int = 10,
        *,
        where: str = "",
        captions: bool = False,
        near: int | float | None = None,
    ) -> list[Match]:
        """Return the pictures, or captions, nearest to a text or a picture (a Path or an image), best first.

        Args:
            where: a condition in SQL on path, caption, width, height, size, mtime, which all matches meet.
            near: least cosine of near-duplicates, of which only the first is returned, such as that of `choose_near`.
        """
        if not isinstance(query, str | Path | Image.Image):
            raise ValueError(f"query must be one text, the Path of a picture, or a picture, got {type(query).__name__}")
        if isinstance(query, str):
            self.embedder.tokenizer.check_words([query])
            vector, kind = self.embedder.embed_text(query), "text"
        else:
            image = read_image(query) if isinstance(query, Path) else query
            vector, kind = self.embedder.embed_picture(image), "picture"
        with explain_read_errors(self.path):
            return search_store(self.store, Query(vector, kind, captions, where), top, near)

    def choose_near(self) -> float:
        """Return the least cosine of near-duplicates, from the distances between the collection's pictures."""
        with explain_read_errors(self.path):
            return near_duplicates.choose_near(self.store, get_device(self.device))

    def duplicates(self, near: int | float | None = None, *, where: str = "") -> list[MatchGroup]:
        """Return groups of identical files, then of near-duplicates; each begins with the picture with the most pixels.

        Args: near: least cosine of near-duplicates to the first one of their group (default: that of `choose_near`).
        """
        near = self.choose_near() if near is None else near
        with explain_read_errors(self.path):
            return near_duplicates.group_duplicates(self.store, near, where, get_device(self.device))

    def unreadable(self) -> list[UnreadableFile]:
        """Return the files that could not be read, with the reasons."""
        with explain_read_errors(self.path):
            rows = self.store.unreadable.search().select(["file", "reason"]).limit(None).to_arrow().to_pylist()
        return sorted(UnreadableFile(Path(os.fsdecode(row["file"])), row["reason"]) for row in rows)

    def _open_embedder(self) -> Embedder:
        if self._embedder is None:
            if self.model is None and not Store.exists(self.path):
                raise ValueError(f"model must be given for a new collection, got none for {self.path}")
            embedder = self.model if isinstance(self.model, Embedder) else self._open_source(self.model)
            self._embedder = embedder.to(get_device(self.device))
        return self._embedder

    def _open_source(self, source: str | Path | None) -> Embedder:
        try:
            return Embedder.open(source or self.store.metadata["model"])
        except ValueError as error:
            hint = "" if source else f"; {self.path} was made with it: give its new place with --model"
            raise ValueError(f"{error}{hint}") from error


def index(
    folders: str | Path | Iterable[str | Path],
    db: str | Path,
    model: str | Path | Embedder | None = None,
    *,
    exclude: str | Sequence[str] = (),
    device: str = "auto",
) -> IndexSummary:
    """Create a collection of the pictures below folders, or bring it up to date. `Collection.index` has more options.

    Args: model: of a new collection, a CLIP, as for `open_model`.
    """
    return Collection(db, model, device=device).index(folders, exclude=exclude)


def search(
    db: str | Path,
    query: str | Path | Image.Image,
    top: int = 10,
    *,
    where: str = "",
    captions: bool = False,
    near: int | float | None = None,
    device: str = "auto",
) -> list[Match]:
    """Search a collection once, as `Collection.search` does; a `Collection` keeps its model open for more queries."""
    return Collection(db, device=device).search(query, top, where=where, captions=captions, near=near)
