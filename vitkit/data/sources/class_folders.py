"""A folder for each class."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitkit.data.annotations.labels import ordered
from vitkit.data.sources.source import SUFFIXES, Files, pictures_below
from vitkit.support.progress import progress

SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


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
