"""Captions in JSON, as COCO writes them (captions_val2017.json) and Karpathy's splits (dataset_coco.json).

The splits are those of https://cs.stanford.edu/people/karpathy/deepimagesent; Flickr8k and Flickr30k are alike.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.annotations.captions import Captions
from vitkit.data.annotations.no_annotation import Unlabelled
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import Columns, TableListing
from vitkit.support.errors import format_few, suggest, suggest_path

SUFFIX = ".json"
TRAIN, REST = "train", "restval"
MAX_TRIES = 100  # images that are looked for in each folder


def parse_coco(name: str) -> tuple[Path, str] | None:
    """Return the file and the split of FILE.json or FILE.json@SPLIT; None for any other name."""
    file, _, split = name.rpartition("@")
    if not file.lower().endswith(SUFFIX) or Path(name).exists():
        file, split = name, ""
    path = Path(file).expanduser()
    return None if path.suffix.lower() != SUFFIX or path.is_dir() else (path, split)


def list_coco(name: str, annotation: Annotation, columns: Columns, exclude: Sequence[str]) -> TableListing:
    """List all images, or those of one split. Karpathy's `train` includes his `restval`, as usual in training.

    Images are in one of `list_picture_folders`.
    """
    path, split = parse_coco(name) or (Path(name), "")
    match read_annotations(path):
        case {"images": [*images], "annotations": [*annotations]}:
            if split:
                raise ValueError(f"a split must be one of Karpathy's, got COCO's own captions; source={path}@{split}")
            rows = list_coco_images(images, annotations)
        case {"images": [*images]}:
            rows = list_karpathy_images(images, split)
        case _:
            raise ValueError(f"captions must be JSON with images, and annotations or sentences; source={path}")
    rows.title = f"{path}@{split}" if split else str(path)
    rows.folder = find_picture_folder(path, rows)
    return rows


def read_annotations(path: Path) -> object:
    """Return what the JSON of a file holds. Raises: ValueError, one line."""
    if not path.is_file():
        raise ValueError(f"source must be a file that exists, got source={path}{suggest_path(path)}")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"captions must be JSON, got {error}; source={path}") from None


def list_coco_images(images: Sequence[object], annotations: Sequence[object]) -> TableListing:
    """Return COCO's images, each with all of its captions."""
    rows, invalid, orphans, duplicates = TableListing(title="", folder=Path()), [], [], list[str]()
    captions: dict[object, list[object]] = {}
    for place, image in enumerate(images):
        match image:
            case {"id": int() | str() as key, "file_name": str(name)}:
                if key in captions:
                    duplicates.append(f"images[{place}]")
                rows.add(f"images[{place}]", name, captions.setdefault(key, []))
            case _:
                invalid.append(f"images[{place}]")
    for place, annotation in enumerate(annotations):
        match annotation:
            case {"image_id": int() | str() as key, "caption": str(text)}:
                captions[key].append(text) if key in captions else orphans.append(f"annotations[{place}]")
            case _:
                invalid.append(f"annotations[{place}]")
    if invalid:
        rows.problems.append(
            f"images must have id and file_name, annotations image_id and caption, got others in {format_few(invalid)}"
        )
    if duplicates:
        rows.problems.append(f"every image must have an id of its own, got one again in {format_few(duplicates)}")
    if orphans:
        rows.problems.append(f"every caption must be of an image, got an unknown image_id in {format_few(orphans)}")
    return rows


def list_karpathy_images(images: Sequence[object], split: str) -> TableListing:
    """Return Karpathy's images of a split, each with all of its captions."""
    rows, invalid, splits = TableListing(title="", folder=Path()), [], dict[str, None]()
    selection = {split, REST} if split == TRAIN else {split}
    for place, image in enumerate(images):
        match image:
            case {"filename": str(name), "split": str(image_split), "sentences": [*sentences], **rest}:
                splits[image_split] = None
                if not split or image_split in selection:
                    file = os.path.join(str(rest.get("filepath", "")), name)
                    rows.add(f"images[{place}]", file, [_get_sentence(sentence) for sentence in sentences])
            case _:
                invalid.append(f"images[{place}]")
    if invalid:
        rows.problems.append(f"images must have filename, split and sentences, got others in {format_few(invalid)}")
    if split and not selection & splits.keys():
        hint = suggest(split, splits)
        rows.problems.append(f"split must be one of {', '.join(splits) or 'none'}, got split={split}{hint}")
    return rows


def _get_sentence(sentence: object) -> object:
    return sentence.get("raw", sentence) if isinstance(sentence, dict) else sentence


def list_picture_folders(path: Path) -> list[Path]:
    """Return the folders that may hold the images: that of the JSON and the one above, each itself, its `images`, and
    the folder that the JSON's name ends with: val2017 for COCO's annotations/captions_val2017.json, flickr8k for
    dataset_flickr8k.json.
    """
    end = path.stem.rpartition("_")[2]
    return [folder / inner for folder in (path.parent, path.parent.parent) for inner in ("", "images", end)]


def find_picture_folder(path: Path, rows: TableListing) -> Path:
    """Return the first folder that holds one of the first images; if none does, add a problem to the rows."""
    folders = list_picture_folders(path)
    names = [str(name) for name in rows.names[:MAX_TRIES]]
    for folder in folders:
        if any((folder / name).is_file() for name in names):
            return folder
    if names:
        rows.problems.append(f"pictures must lie in one of {format_few(folders, len(folders))}")
    return folders[0]


COCO = Kind(
    f"captions ({SUFFIX})",
    lambda name: parse_coco(name) is not None,
    list_coco,
    annotations=(Captions, Unlabelled),
)
