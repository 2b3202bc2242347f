"""One text file."""

from collections.abc import Sequence
from pathlib import Path

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.annotations.documents import Documents
from vitkit.data.omissions import Omissions
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import Columns, FileListing
from vitkit.data.sources.text_documents import TEXT_SUFFIXES, list_text_files
from vitkit.support.errors import suggest_path


def list_text(name: str, annotation: Annotation, columns: Columns, exclude: Sequence[str]) -> FileListing:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"source must be a text that exists, got source={name}{suggest_path(path)}")
    return list_text_files([str(path)], name, Omissions())


def is_text(name: str) -> bool:
    return name.lower().endswith(TEXT_SUFFIXES) and not Path(name).expanduser().is_dir()


TEXT = Kind(f"a text ({' '.join(TEXT_SUFFIXES)})", is_text, list_text, annotations=(Documents,))
