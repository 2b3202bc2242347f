"""A folder: a table metadata.csv, .tsv, .jsonl or .parquet, else shards, else what the annotation reads in folders."""

import os
from pathlib import Path

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.sources import shards, table_files
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import Columns, Listing
from vitkit.support.errors import format_few


def list_folder(name: str, annotation: Annotation, columns: Columns) -> Listing:
    """List the samples of a folder. Raises: ValueError if it is two kinds of source at once."""
    root, form = Path(name).expanduser(), annotation.folder
    tables, tars = list_tables_and_shards(root)
    listing = form.list_samples(root) if form.first or not (tables or tars) else None
    if listing is not None and (listing.places or not (tables or tars)):
        return listing
    files = [*tables, *tars[:1]]
    files += [file] if (file := form.find_file(root, bool(tables))) else []
    if len(files) > 1:
        raise ValueError(
            f"source must be one of a table, shards and {form.name}, got {format_few(files)}; source={root}"
        )
    if tables:
        return table_files.list_table(str(root / tables[0]), annotation, columns)
    return shards.index_shards([str(root / tar) for tar in tars], annotation, columns)


def list_tables_and_shards(root: Path) -> tuple[list[str], list[str]]:
    files = sorted(entry.name for entry in os.scandir(root) if entry.name[0] != ".")
    tables = [file for file in files if file in {f"metadata{suffix}" for suffix in table_files.SUFFIXES}]
    return tables, [file for file in files if file.endswith(shards.SUFFIX)]


FOLDER = Kind("a folder", lambda name: bool(name) and Path(name).expanduser().is_dir(), list_folder)
