"""The dispatch for images with captions: which source a name means."""

from pathlib import Path

from vitkit.data.annotations import caption_folders, caption_shards, caption_tables, captions
from vitkit.data.annotations.caption_tables import of_files
from vitkit.data.annotations.captions import TEXT_COLUMNS, Captioned
from vitkit.data.demo import captioned_sets
from vitkit.data.demo.captioned_sets import BUILT_IN
from vitkit.data.sources import coco, hub
from vitkit.data.sources.coco import find_picture_folder, of_coco, of_splits, read_annotations
from vitkit.data.sources.open import Kinds, open_kind
from vitkit.data.sources.source import Source
from vitkit.data.sources.subset import Subset


def held_out(source: Source, name: str, fold: int, folds: int) -> Subset:
    """What `Pairs` holds out of a set that has captions too: folds of labels would hold training pictures."""
    if name not in captioned_sets.DIGITS:  # openmoji has fewer pictures with labels than with captions
        known = ", ".join(captioned_sets.DIGITS)
        raise ValueError(f"fold must be of a set that a CLIP trains on too ({known}), got fold={fold} of {name}")
    return Subset(source, captions.split_kin(open_captioned(name).kin, folds, fold)[1])


def open_captioned(name: str, columns: tuple[str, str] = TEXT_COLUMNS) -> Captioned:
    """What `open_source` understands, with captions in the place of labels, and JSON of COCO or Karpathy.

    A folder is a table metadata.csv, .tsv, .jsonl or .parquet, else shards, else pictures x.jpg each beside its x.txt.
    FILE.json@SPLIT is one of Karpathy's splits; see `open_json`.

    Args: columns: what a table or data set calls the picture and its caption.
    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    if not name.startswith(hub.SCHEME) and (found := coco.parse_coco(name)):
        return open_json(*found)
    return open_kind(
        name,
        Kinds(
            BUILT_IN,
            hub=lambda name: caption_tables.open_captioned_hub(name, columns),
            folder=lambda root: caption_folders.open_captioned_folder(root, columns),
            shards=lambda paths: caption_shards.index_captions(paths, columns[1]),
            table=lambda path: caption_tables.open_captioned_table(path, columns),
            more=f"captions ({coco.SUFFIX}), ",
        ),
    )


def open_json(path: Path, split: str = "") -> Captioned:
    """All pictures, or those of one split; Karpathy's `train` holds his `restval` too, as the field trains.

    Pictures lie beside the JSON or in one of `folders`.

    Raises: ValueError, one line that lists everything wrong.
    """
    match read_annotations(path):
        case {"images": [*images], "annotations": [*annotations]}:
            if split:
                raise ValueError(f"a split must be one of Karpathy's, got COCO's own captions; source={path}@{split}")
            rows = of_coco(images, annotations)
        case {"images": [*images]}:
            rows = of_splits(images, split)
        case _:
            raise ValueError(f"captions must be JSON with images, and annotations or sentences; source={path}")
    root = find_picture_folder(path, rows)
    return of_files(rows, root, f"{path}@{split}" if split else str(path))
