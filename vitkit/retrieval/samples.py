"""Samples of sources that are no folders of images: tables, shards, data sets, built-in sets."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from vitkit.data.omissions import Omissions
from vitkit.data.sources.source import SUFFIXES, Source


@dataclass(frozen=True)
class Sample:
    """One image of a source, and its captions."""

    source: Source
    index: int
    captions: tuple[str, ...]


class Samples(NamedTuple):
    """The images of a source by their names, and those that were left out."""

    by_name: dict[str, Sample]
    omissions: Omissions


def find_source(name: str) -> str | None:
    """Return a collection's name for a source that is no folder of images; None for anything else.

    A folder of images with a table metadata.csv, .tsv, .jsonl or .parquet is a source: the table has the captions.
    """
    path = os.path.expanduser(name)
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        return None
    from vitkit.data.sources.folders import list_tables_and_shards
    from vitkit.data.sources.open import is_source, lies_on_disk

    if os.path.isdir(path) and holds_images(path) and not list_tables_and_shards(Path(path))[0]:
        return None
    if not is_source(name):
        return None
    return os.path.realpath(path) if lies_on_disk(name) else name


def holds_images(folder: str) -> bool:
    return any(name.lower().endswith(SUFFIXES) for _, _, files in os.walk(folder) for name in files)


def read_samples(name: str, columns: tuple[str, str] | None, exclude: Sequence[str]) -> Samples:
    """Read a source, with the captions of its images where it has any.

    Args: columns, exclude: as in `open_source`; by default the column of the captions may be missing.
    """
    from vitkit.data.annotations.captions import CAPTIONS_IF_ANY
    from vitkit.data.sources.open import open_source

    captioned = open_source(name, CAPTIONS_IF_ANY, columns, exclude)
    source = captioned.pictures
    captions = (tuple(" ".join(text.split()) for text in texts) for texts in captioned.captions)
    by_name = {source.get_name(index): Sample(source, index, texts) for index, texts in enumerate(captions)}
    return Samples(by_name, source.omissions)


@lru_cache(maxsize=4)
def reopen_samples(name: str) -> dict[str, Sample]:
    """Return the samples of a source that was indexed, without their captions."""
    from vitkit.data.sources.open import open_unlabelled

    source = open_unlabelled(name)
    return {source.get_name(index): Sample(source, index, ()) for index in range(len(source))}


def read_mtime(name: str) -> int:
    """Return the last change of the file that an image is or lies in, in ns since 1970; 0 without a file."""
    path = Path(name)
    for file in (path, *path.parents) if path.is_absolute() else ():
        if file.exists():
            return file.stat().st_mtime_ns
    return 0
