"""One image file."""

from collections.abc import Sequence
from pathlib import Path

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.annotations.no_annotation import Unlabelled
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import Columns, FileListing
from vitkit.data.sources.source import SUFFIXES, holds_image
from vitkit.support.errors import suggest_path


def list_image(name: str, annotation: Annotation, columns: Columns, exclude: Sequence[str]) -> FileListing:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"source must be a picture that exists, got source={name}{suggest_path(path)}")
    file = str(path)
    return FileListing(title=name, places=[file], annotations=[None], files=[file], empty="")


def is_image(name: str) -> bool:
    path = Path(name).expanduser()
    return (name.lower().endswith(SUFFIXES) and not path.is_dir()) or (not path.suffix and holds_image(str(path)))


IMAGE = Kind("a picture", is_image, list_image, annotations=(Unlabelled,))
