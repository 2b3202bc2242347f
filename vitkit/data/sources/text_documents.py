"""Texts as samples: .txt files below a folder, cells of a table, topics of a manual."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitkit.data.omissions import Omissions
from vitkit.data.sources.sample_list import FileListing, FolderForm, Listing
from vitkit.data.sources.source import Source, walk_files
from vitkit.data.tokenizer import replace_surrogates
from vitkit.support.progress import track_progress

TEXT_SUFFIXES = (".txt",)


class TextSource(Source):
    """Texts in memory. Args: places: the name of each within the title."""

    def __init__(self, title: str, places: Sequence[str], texts: Sequence[str]) -> None:
        super().__init__((), [-1] * len(texts))
        self.title, self.places, self.texts = title, places, texts

    def get_name(self, index: int) -> str:
        return f"{self.title}[{self.places[index]}]"

    def get_relative_name(self, index: int) -> str:
        return f"{os.path.basename(self.title)}[{self.places[index]}]"

    def read_content(self, index: int) -> bytes:
        return replace_surrogates(self.texts[index]).encode()

    def is_sequence(self, index: int) -> bool:
        return False


@dataclass(kw_only=True)
class TextListing(Listing):
    """Texts that the rows of a table hold; None for a row without one."""

    texts: list[object]

    def open_images(self, rows: Sequence[int]) -> TextSource:
        texts = [text if isinstance(text, str) else "" for text in self.texts]
        return TextSource(self.title, [self.places[row] for row in rows], [texts[row] for row in rows])


def list_documents(root: Path, exclude: Sequence[str]) -> FileListing:
    """List the .txt files below a folder, in the same order on every machine. Hidden ones are left out."""
    omissions = Omissions()
    files = list(track_progress(walk_files(root, TEXT_SUFFIXES, "texts", omissions, exclude), "listing texts"))
    return list_text_files(files, str(root), omissions)


def list_text_files(files: Sequence[str], title: str, omissions: Omissions) -> FileListing:
    return FileListing(
        title=title,
        places=[*files],
        annotations=[None] * len(files),
        files=files,
        empty=f"source must hold texts ({' '.join(TEXT_SUFFIXES)}), a table or shards, got none",
        omissions=omissions,
    )


def find_document(root: Path, table: bool, exclude: Sequence[str]) -> str | None:
    """Return the first text in a folder with a table; none beside shards, which a list of classes may describe."""
    files = walk_files(root, TEXT_SUFFIXES, "texts", Omissions(), exclude) if table else ()
    return next((os.path.relpath(file, root) for file in files), None)


TEXT_FOLDER = FolderForm("texts", find_document, list_documents)
