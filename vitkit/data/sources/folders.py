"""A folder: a table metadata.csv, .tsv, .jsonl or .parquet, else shards, else what the annotation reads in folders."""

import os
from collections.abc import Sequence
from pathlib import Path

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.sources import shards, table_files
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import Columns, Listing
from vitkit.data.sources.source import explain_omission, walk_images
from vitkit.support.errors import format_few


def list_folder(name: str, annotation: Annotation, columns: Columns, exclude: Sequence[str]) -> Listing:
    """List the samples of a folder. Raises: ValueError if it is two kinds of source at once."""
    root, form = Path(name).expanduser(), annotation.folder
    tables, tars = list_tables_and_shards(root, exclude)
    listing = form.list_samples(root, exclude) if form.first or not (tables or tars) else None
    if listing is not None and (listing.places or not (tables or tars)):
        return listing
    files = [*tables, *tars[:1]]
    files += [file] if (file := form.find_file(root, bool(tables), exclude)) else []
    if len(files) > 1:
        raise ValueError(
            f"source must be one of a table, shards and {form.name}, got {format_few(files)}; source={root}"
        )
    if tables:
        listing = table_files.list_table(str(root / tables[0]), annotation, columns, exclude)
        omit_unlisted_images(root, listing, exclude)
        return listing
    listing = shards.index_shards([str(root / tar) for tar in tars], annotation, columns, exclude)
    others = {entry.name for entry in os.scandir(root)} - {*tars, shards.NAMES}
    for path in sorted(f"{root}/{other}" for other in others):
        listing.omissions.add(explain_omission(path, exclude) or "files and folders beside the shards", [path])
    return listing


def list_tables_and_shards(root: Path, exclude: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    files = sorted(entry.name for entry in os.scandir(root) if not explain_omission(entry.path, exclude))
    tables = [file for file in files if file in {f"metadata{suffix}" for suffix in table_files.SUFFIXES}]
    return tables, [file for file in files if file.endswith(shards.SUFFIX)]


def omit_unlisted_images(root: Path, listing: Listing, exclude: Sequence[str]) -> None:
    """Count the images in a folder that no row of its table names."""
    listed = {listing.get_key(row) for row in range(len(listing.places))}
    files = walk_images(Path(os.path.abspath(root)), exclude=exclude)
    listing.omissions.add("pictures that the table does not list", [file for file in files if file not in listed])


FOLDER = Kind("a folder", lambda name: bool(name) and Path(name).expanduser().is_dir(), list_folder)
