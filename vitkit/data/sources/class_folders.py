"""A folder for each class."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from vitkit.data.omissions import Omissions
from vitkit.data.sources.sample_list import FileListing, FolderForm
from vitkit.data.sources.source import SUFFIXES, explain_omission, order_names, walk_images
from vitkit.support.progress import track_progress

SPLITS = {
    "train": "train|training|trainval",
    "val": "val|valid|validation|dev|development|eval|evaluation|holdout|heldout",
    "test": "test|testing",
}
CONTENTS = "data|dataset|image|images|img|imgs|photos|pictures|set|split"


def list_class_folders(root: Path, exclude: Sequence[str]) -> FileListing:
    """List the images below each class folder, at any depth. Hidden files and folders are left out."""
    omissions = Omissions()
    class_names = order_names(list_folders(root, exclude))
    if splits := find_splits(class_names):
        sides = {"train": splits.get("train"), "val": splits.get("val") or splits.get("test")}
        options = [f"--data.{side} {quote(str(root / name))}" for side, name in sides.items() if name]
        raise ValueError(
            f"source must hold a folder for each class, got one for each split, {class_names}; "
            f"open one of them, in fit by {' '.join(options)}; source={root}"
        )
    walks = (walk_images(root / name, omissions, exclude) for name in class_names)
    walk = ((file, label) for label, files in enumerate(walks) for file in files)
    samples = list(track_progress(walk, "listing pictures"))
    problems, class_problems = [], []
    if len(class_names) < 2:
        loose = "" if class_names else "; without folders take a metadata.csv (file_name,label), or unlabelled"
        (class_problems if class_names else problems).append(
            f"source must hold at least two folders, one for each class, got classes={class_names}{loose}"
        )
    filled = {label for _, label in samples}
    if empty := [name for label, name in enumerate(class_names) if label not in filled]:
        class_problems.append(f"every class folder must hold a picture ({' '.join(SUFFIXES)}), got none in {empty}")
    files = [file for file, _ in samples]
    for path in sorted(f"{root}/{name}" for name in {*os.listdir(root)} - {*class_names}):
        omissions.add(explain_omission(path, exclude) or "files beside the class folders", [path])
    return FileListing(
        title=str(root),
        places=files,
        annotations=[label for _, label in samples],
        problems=problems,
        class_problems=class_problems,
        class_names=class_names,
        files=files,
        empty="source must hold pictures, got none",
        omissions=omissions,
    )


def find_splits(folders: Sequence[str]) -> dict[str, str]:
    """Return the first folder of each split if all are named after splits, as Training or val_images are; else none."""
    splits: dict[str, str] = {}
    for folder in folders:
        letters = re.sub(r"[\W\d_]", "", folder.lower())
        matches = (re.fullmatch(f"(?:{CONTENTS})?(?:{words})(?:{CONTENTS})?", letters) for words in SPLITS.values())
        split = next((split for split, match in zip(SPLITS, matches, strict=True) if match), None)
        if split is None:
            return {}
        splits.setdefault(split, folder)
    return splits if len(splits) > 1 or len(folders) == 1 else {}  # test_1, test_2 are classes


def list_folders(root: Path, exclude: Sequence[str]) -> list[str]:
    return [entry.name for entry in os.scandir(root) if entry.is_dir() and not explain_omission(entry.path, exclude)]


def find_class_folder(root: Path, table: bool, exclude: Sequence[str]) -> str | None:
    """Return the first folder with images; none if there is a table, whose images may be in folders."""
    names = [] if table else list_folders(root, exclude)
    return next((f"{name}/" for name in names if any(walk_images(root / name, exclude=exclude))), None)


CLASS_FOLDERS = FolderForm("class folders", find_class_folder, list_class_folders)
