"""A folder for each class."""

import os
from pathlib import Path

from vitkit.data.omissions import Omissions
from vitkit.data.sources.sample_list import FileListing, FolderForm
from vitkit.data.sources.source import SUFFIXES, order_names, walk_images
from vitkit.support.progress import track_progress

SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


def list_class_folders(root: Path) -> FileListing:
    """List the images below each class folder, at any depth. Hidden files and folders are left out."""
    omissions = Omissions()
    class_names = order_names(list_folders(root))
    if class_names and set(class_names) <= SPLITS:
        raise ValueError(
            f"source must hold a folder for each class, got one for each split, {class_names}; source={root}"
        )
    walk = ((file, label) for label, name in enumerate(class_names) for file in walk_images(root / name, omissions))
    samples = list(track_progress(walk, "listing pictures"))
    problems = []
    if len(class_names) < 2:
        loose = "" if class_names else "; without folders take a metadata.csv (file_name,label), or unlabelled"
        problems.append(f"source must hold at least two folders, one for each class, got classes={class_names}{loose}")
    filled = {label for _, label in samples}
    if empty := [name for label, name in enumerate(class_names) if label not in filled]:
        problems.append(f"every class folder must hold a picture ({' '.join(SUFFIXES)}), got none in {empty}")
    files = [file for file, _ in samples]
    other_files = sorted(entry.path for entry in os.scandir(root) if entry.name[0] == "." or not entry.is_dir())
    omissions.add("files beside the class folders", other_files)
    return FileListing(
        title=str(root),
        places=files,
        annotations=[label for _, label in samples],
        problems=problems,
        class_names=class_names,
        files=files,
        empty="source must hold pictures, got none",
        omissions=omissions,
    )


def list_folders(root: Path) -> list[str]:
    return [entry.name for entry in os.scandir(root) if entry.name[0] != "." and entry.is_dir()]


def find_class_folder(root: Path, table: bool) -> str | None:
    """Return the first folder with images; none if there is a table, whose images may be in folders."""
    names = [] if table else list_folders(root)
    return next((f"{name}/" for name in names if any(walk_images(root / name))), None)


CLASS_FOLDERS = FolderForm("class folders", find_class_folder, list_class_folders)
