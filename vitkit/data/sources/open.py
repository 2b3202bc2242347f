"""The dispatch from the name of a source to its kind, for every annotation."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.annotations.captions import CAPTIONS, Captions
from vitkit.data.annotations.documents import Documents
from vitkit.data.annotations.labels import LABELS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.demo import built_in, captioned_sets, manual
from vitkit.data.order import split_folds
from vitkit.data.sample_record import SampleRecord
from vitkit.data.sample_selection import select_held_out
from vitkit.data.sources.class_folders import CLASS_FOLDERS, list_folders
from vitkit.data.sources.coco import COCO
from vitkit.data.sources.folders import FOLDER, list_tables_and_shards
from vitkit.data.sources.hub import HUB
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import Columns, Listing
from vitkit.data.sources.shards import SHARDS
from vitkit.data.sources.single_image import IMAGE
from vitkit.data.sources.single_text import TEXT
from vitkit.data.sources.source import Source, count_sequences, parse_patterns
from vitkit.data.sources.subset import Subset
from vitkit.data.sources.table_files import TABLE
from vitkit.support.errors import InputWarning, suggest, suggest_path

T = TypeVar("T")

KINDS: Sequence[Kind] = (  # in the order of errors; of two kinds that accept a name the last is taken
    FOLDER,
    TABLE,
    COCO,
    SHARDS,
    HUB,
    IMAGE,
    TEXT,
)
BUILT_IN: Mapping[type[Annotation], Mapping[str, Callable[[], Listing]]] = {  # of annotations other than labels
    Captions: captioned_sets.BUILT_IN,
    Documents: manual.BUILT_IN,
}
ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")


@overload
def open_source(
    name: str,
    annotation: None = None,
    columns: Columns | None = None,
    exclude: str | Sequence[str] = (),
    skip_absent: bool = False,
) -> Source: ...
@overload
def open_source(
    name: str,
    annotation: Annotation[T],
    columns: Columns | None = None,
    exclude: str | Sequence[str] = (),
    skip_absent: bool = False,
) -> T: ...


def open_source(
    name: str,
    annotation: Annotation | None = None,
    columns: Columns | None = None,
    exclude: str | Sequence[str] = (),
    skip_absent: bool = False,
) -> object:
    """Open a built-in set by its name, or a source of any kind; a folder called digits is written ./digits.

    A folder is read by its table metadata.csv, .tsv, .jsonl or .parquet, else by its shards, else as the annotation
    reads folders: class folders, or images x.jpg each beside its x.txt.

    Args:
        annotation: of each image: `LABELS` by default, `CAPTIONS`, or `UNLABELLED`, which also takes an image and any
            folder of images; or `DOCUMENTS` for texts in place of images: a .txt, a folder of them, a column `text`.
        columns: the columns of a table or data set that hold the image and its annotation, or the image and a 0 or 1
            for each class; the extensions of a shard's members, or a key of its .json.
        exclude: patterns, one or several, of files and folders in the source to leave out: those whose name matches one
            such as *.gif or old, or, of a pattern with slashes such as cat/old_*, the end of their path.
        skip_absent: a table may name some image files that do not exist; reading them fails.

    Raises: ValueError, one line with all problems and the possible values.
    """
    kind = LABELS if annotation is None else annotation
    patterns = parse_patterns(exclude)
    listing = kind.prepare(list_source(name, kind, kind.choose_columns(columns or kind.columns), patterns))
    if patterns:
        listing.leave_out(patterns)
    parsed = kind.parse(listing)
    problems = [*listing.problems, *parsed.problems, *listing.find_image_problems(parsed.rows, skip_absent)]
    if not (listing.places or problems):
        problems = [listing.empty]
    if problems:
        problems += [listing.hint] if listing.hint else []
        raise ValueError("; ".join([*problems, *listing.omissions.format(0), f"source={listing.title}"]))
    source = listing.open_images(parsed.rows)
    source.omissions.update(listing.omissions)
    if patterns and not any(omission.reason.endswith("matched by exclude") for omission in source.omissions):
        warnings.warn(
            f"exclude matches no file, got exclude={patterns}; source={listing.title}", InputWarning, stacklevel=2
        )
    count_sequences(source, source.omissions)
    return parsed.attach(source)


def list_source(name: str, annotation: Annotation, columns: Columns, exclude: Sequence[str]) -> Listing:
    """List the samples of a name with their raw annotations. Raises: ValueError for a name of no kind."""
    sets = next((names for kind, names in BUILT_IN.items() if isinstance(annotation, kind)), built_in.BUILT_IN)
    if name in sets:
        return sets[name]()
    if annotation.optional and name in built_in.BUILT_IN:
        listing = built_in.BUILT_IN[name]()
        return replace(listing, annotations=[None] * len(listing.places))
    kinds = [kind for kind in KINDS if not kind.annotations or isinstance(annotation, kind.annotations)]
    for kind in reversed(kinds):
        if kind.accepts(name):
            return kind.list_samples(name, annotation, columns, exclude)
    forms = ", ".join(kind.form for kind in kinds)
    path = Path(name).expanduser()
    if name and path.is_file():
        archive = path.name.lower().endswith(ARCHIVES)
        kind = "an archive; unpack it by unzip or tar -xf, and name the folder" if archive else "a file of another kind"
        raise ValueError(f"source must be {forms}, got source={name}, {kind}")
    if os.sep in name or (name and path.exists()):
        raise ValueError(f"source must be {forms} that exists, got source={name}{suggest_path(path)}")
    raise ValueError(f"source must be {forms} or one of {', '.join(sets)}, got source={name}{suggest(name, sets)}")


def is_source(name: str) -> bool:
    """Return whether a name is a built-in set or a source; not one image, nor a folder without a table or shards."""
    kinds = [kind for kind in KINDS if kind not in (FOLDER, IMAGE)]
    is_data_folder = FOLDER.accepts(name) and any(list_tables_and_shards(Path(name).expanduser()))
    return name in built_in.BUILT_IN or is_data_folder or any(kind.accepts(name) for kind in kinds)


def has_labels(name: str, exclude: Sequence[str] = ()) -> bool:
    """Return whether a source may have labels: not one image, nor a folder of images without two class folders."""
    path = Path(name).expanduser()
    if name in built_in.BUILT_IN or not (IMAGE.accepts(name) or FOLDER.accepts(name)):
        return True
    if IMAGE.accepts(name):
        return False
    if any(list_tables_and_shards(path, exclude)):
        return True
    return len(list_folders(path, exclude)) > 1 and CLASS_FOLDERS.find_file(path, False, exclude) is not None


def open_pictures(
    name: str, columns: Columns | None = None, exclude: str | Sequence[str] = (), unlabelled: bool = False
) -> Source:
    """Open images with their labels if the source has some, see `has_labels`. Args: unlabelled: leave labels out."""
    labelled = not unlabelled and has_labels(name, parse_patterns(exclude))
    if not (labelled or unlabelled or IMAGE.accepts(name)):
        warnings.warn(f"{name} has no class folders: its pictures have no labels", InputWarning, stacklevel=2)
    return open_source(name, LABELS if labelled else UNLABELLED, columns, exclude)


def lies_on_disk(name: str) -> bool:
    """Return whether the name of a source is a path."""
    return not (name in built_in.BUILT_IN or HUB.accepts(name))


def open_unlabelled(name: str, columns: Columns | None = None, exclude: str | Sequence[str] = ()) -> Source:
    """Open images without their annotations; labels are -1."""
    return open_source(name, UNLABELLED, columns, exclude)


def open_held_out(
    source: Source,
    name: str,
    fold: int,
    folds: int,
    exclude: str | Sequence[str] = (),
    record: SampleRecord | None = None,
) -> tuple[Subset, dict[str, Any]]:
    """Return the validation fold of a labelled source, as `fit` and `evaluate` split it, and `Selection.numbers`.

    A source that has captions too is split by them: CLIP trains on captions, so a fold by labels would hold training
    images. Any other source is split by labels.
    """
    try:
        captioned = open_source(name, CAPTIONS, exclude=exclude)
    except ValueError:  # no CLIP trains on it
        split = split_folds(source.labels, source.class_names, folds, fold)
        selection = select_held_out(record, source, split, fold, folds)
        return Subset(source, selection.samples), selection.numbers
    split = CAPTIONS.split(captioned, folds, fold)
    selection = select_held_out(record, captioned.pictures, split, fold, folds, captioned.groups)
    held_out = {captioned.pictures.get_name(sample) for sample in selection.samples}
    samples = [sample for sample in range(len(source)) if source.get_name(sample) in held_out]
    return Subset(source, samples), selection.numbers
