"""A folder of x.jpg beside x.txt, at any depth, whose every line is a caption."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vitkit.data.annotations import caption_shards, caption_tables
from vitkit.data.annotations.captions import Captioned, attach_captions, texts
from vitkit.data.sources.open import tables_and_shards
from vitkit.data.sources.source import SUFFIXES, Files
from vitkit.support.errors import few
from vitkit.support.progress import progress

TEXT = ".txt"


class Named(NamedTuple):
    """The files that share a path up to the last dot; those of other folders do not."""

    path: str
    pictures: list[str]
    texts: list[str]


def open_captioned_folder(root: Path, columns: tuple[str, str]) -> Captioned:
    """Raises: ValueError where a folder is two kinds of source at once."""
    listed, tars = tables_and_shards(root)
    paired = [one.texts[0] for one in named(root) if one.pictures and one.texts][:1] if listed or tars else []
    if len(found := [*listed, *tars[:1], *(os.path.relpath(path, root) for path in paired)]) > 1:
        raise ValueError(f"source must be one of a table, shards and x.jpg with x.txt, got {few(found)}; source={root}")
    if listed:
        return caption_tables.open_captioned_table(root / listed[0], columns)
    if tars:
        return caption_shards.index_captions([str(root / name) for name in tars], columns[1])
    return pairs(root)


def pairs(root: Path) -> Captioned:
    """Raises: ValueError that lists everything wrong with the folder."""
    found = list(progress(named(root), "listing pictures"))
    problems = []
    if not any(one.pictures for one in found):
        problems.append(f"source must hold pictures ({' '.join(SUFFIXES)}), each with its {TEXT}, got none")
    if lone := [one.texts[0] for one in found if one.texts and not one.pictures]:
        problems.append(f"every {TEXT} must lie beside its picture, got none for {few(lone)}")
    if several := [one.path for one in found if len(one.pictures) > 1 or len(one.texts) > 1]:
        problems.append(f"a picture and its {TEXT} must alone have a name, got several files {few(several)}")
    if bare := [one.pictures[0] for one in found if one.pictures and not one.texts]:
        problems.append(
            f"every picture must have a {TEXT} of its name beside it, got none for {few(bare)}; "
            "or list pictures and captions in a metadata.csv (file_name,text)"
        )
    whole = [one for one in found if one.pictures and one.texts]
    files = [one.texts[0] for one in whole]
    told = texts([_lines(file) for file in progress(files, "reading captions")], files)
    if problems := [*problems, *told.problems]:
        raise ValueError(f"{'; '.join(problems)}; source={root}")
    return attach_captions(Files([one.pictures[0] for one in whole], (), [-1] * len(whole)), told.captions)


def _lines(path: str) -> list[str] | ValueError:
    """An exception, which no caption can be, where it is not UTF-8."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        return ValueError("not in UTF-8")


def named(root: Path) -> Iterator[Named]:
    """The pictures and texts below a folder, in an order that every machine agrees on. Hidden ones do not count."""
    for parent, inner, files in os.walk(root, onerror=_refuse):
        inner[:] = sorted(name for name in inner if name[0] != ".")
        found: dict[str, Named] = {}
        for name in sorted(files):
            stem, suffix = os.path.splitext(f"{parent}/{name}")
            if name[0] != "." and suffix.lower() in (TEXT, *SUFFIXES):
                one = found.setdefault(stem, Named(stem, [], []))
                (one.texts if suffix.lower() == TEXT else one.pictures).append(stem + suffix)
        yield from found.values()


def _refuse(error: OSError) -> None:
    raise ValueError(f"every folder must be readable, got {error}")
