"""A folder of images x.jpg, at any depth, each beside an x.txt with a caption a line."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vitkit.data.annotations.raw_text import decode_text
from vitkit.data.omissions import Omissions
from vitkit.data.sources.sample_list import FileListing, FolderForm
from vitkit.data.sources.source import SUFFIXES, walk_files
from vitkit.support.errors import format_few
from vitkit.support.names import split_lines
from vitkit.support.progress import track_progress

TEXT = ".txt"


class SameStem(NamedTuple):
    """The files that share a path up to the last dot."""

    path: str
    pictures: list[str]
    texts: list[str]


def list_texts_beside(root: Path, exclude: Sequence[str]) -> FileListing:
    omissions = Omissions()
    stems = list(track_progress(group_by_stem(root, omissions, exclude), "listing pictures"))
    problems = []
    if lone := [stem.texts[0] for stem in stems if stem.texts and not stem.pictures]:
        problems.append(f"every {TEXT} must lie beside its picture, got none for {format_few(lone)}")
    if several := [stem.path for stem in stems if len(stem.pictures) > 1 or len(stem.texts) > 1]:
        problems.append(f"a picture and its {TEXT} must alone have a name, got several files {format_few(several)}")
    pairs = [stem for stem in stems if stem.pictures]
    bare = [stem.pictures[0] for stem in pairs if not stem.texts]
    if bare and len(bare) == len(pairs):
        problems.append(
            f"every picture must have a {TEXT} of its name beside it, got none for {format_few(bare)}; "
            "or list pictures and captions in a metadata.csv (file_name,text)"
        )
    empty = f"source must hold pictures ({' '.join(SUFFIXES)}), each with its {TEXT}, got none"
    if problems and not any(stem.pictures for stem in stems):
        problems.insert(0, empty)
    files = [(pair.texts or pair.pictures)[0] for pair in pairs]
    return FileListing(
        title=str(root),
        places=files,
        annotations=[_read_lines(pair.texts) for pair in track_progress(pairs, "reading captions")],
        problems=problems,
        files=[pair.pictures[0] for pair in pairs],
        empty=empty,
        omissions=omissions,
    )


def _read_lines(paths: Sequence[str]) -> list[str] | ValueError:
    if not paths:
        return []
    text = decode_text(Path(paths[0]).read_bytes(), "utf-8-sig")
    return split_lines(text) if isinstance(text, str) else text


def find_pair(root: Path, table: bool, exclude: Sequence[str]) -> str | None:
    """Return the first text beside a picture."""
    pairs = (stem for stem in group_by_stem(root, Omissions(), exclude) if stem.pictures and stem.texts)
    return next((os.path.relpath(pair.texts[0], root) for pair in pairs), None)


def group_by_stem(root: Path, omissions: Omissions, exclude: Sequence[str]) -> Iterator[SameStem]:
    """Yield the images and texts below a folder, in the same order on every machine. Hidden ones are left out."""
    stems: dict[str, SameStem] = {}
    for path in walk_files(root, (TEXT, *SUFFIXES), "images or texts", omissions, exclude):
        stem, suffix = os.path.splitext(path)
        same = stems.setdefault(stem, SameStem(stem, [], []))
        (same.texts if suffix.lower() == TEXT else same.pictures).append(path)
    yield from stems.values()


TEXTS_BESIDE = FolderForm("x.jpg with x.txt", find_pair, list_texts_beside)
