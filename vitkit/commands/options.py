"""Options that several commands share."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.data.batches import Reading
from vitkit.data.omissions import Omissions
from vitkit.data.order import FOLDS
from vitkit.data.sources.source import COLUMNS, SUFFIXES, Files, Source, count_sequences, walk_images
from vitkit.support.errors import escape_controls
from vitkit.support.files import require_new
from vitkit.support.texts import ENGLISH, list_languages

if TYPE_CHECKING:
    from vitkit.bundle.bundle import Bundle

Parser = argparse.ArgumentParser | argparse._ArgumentGroup
IMAGES = "image files, folders that are searched for them, or - for a list on stdin"


def add_images(parser: Parser, help: str = IMAGES) -> None:
    parser.add_argument("images", nargs="+", help=help)


def add_unlabelled(parser: Parser) -> None:
    parser.add_argument("--unlabelled", action="store_true", help="read no labels, also where folders could be classes")


def add_columns(
    parser: Parser, default: Sequence[str] | None = COLUMNS, second: str = "LABEL", help: str = "the columns of a table"
) -> None:
    several = second == "LABEL"
    names = f"{help}; LABEL may be a 0/1 column for each class, as red,green,blue" if several else help
    action = SplitColumns if several else "store"
    parser.add_argument("--columns", nargs=2, default=default, metavar=("FILE", second), help=names, action=action)


class SplitColumns(argparse.Action):
    """Stores the column of the picture, and one or several others with commas in between."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        namespace.columns = [values[0], *values[1].split(",")]


def add_words(parser: Parser) -> None:
    parser.add_argument(
        "--classes", nargs="+", metavar="NAME", help="of a CLIP: class names, a file of them, or imagenet"
    )


def add_size(parser: Parser) -> None:
    parser.add_argument(
        "--size", type=int, nargs=2, metavar=("H", "W"), help="image size in pixels (default: the model's)"
    )


def open_resized(options: argparse.Namespace) -> "Bundle | str":
    """Return the name of the model or, with --size, the open model for images of that size, and print a note on it."""
    if options.size is None:
        return options.model
    from vitkit.bundle.image_bundle import resize_images  # modules of models, which few commands need here
    from vitkit.convert.open import open_model

    bundle, note = resize_images(open_model(options.model), tuple(options.size))
    print(escape_controls(f"note: {options.model}: {note}"), file=sys.stderr)
    return bundle


def add_out(parser: Parser, metavar: str, help: str, *, short: Sequence[str] = ()) -> None:
    """Add a required --out, and --overwrite. Args: short: other names of the option."""
    parser.add_argument(*short, "--out", type=Path, required=True, metavar=metavar, help=help)
    add_overwrite(parser)


def add_optional_out(parser: Parser, help: str, metavar: str | None = "DIR", default: Path | None = None) -> None:
    parser.add_argument("--out", type=Path, default=default, metavar=metavar, help=help)
    add_overwrite(parser)


def add_overwrite(parser: Parser, help: str = "replace existing files; others in the same folder stay") -> None:
    parser.add_argument("--overwrite", action="store_true", help=help)


def describe_report_folder(name: str) -> str:
    """Return the default of --out for `choose_report_folder`, for --help."""
    return f"{name}/SOURCE, with --fold {name}/SOURCE-foldN, beside the model folder, or here"


def choose_report_folder(options: argparse.Namespace, name: str) -> Path:
    """Return --out, else a folder below `name` for the source and fold, beside the model folder or here.

    Raises: ValueError if it holds something and is not to be overwritten.
    """
    parent = Path(options.model).resolve().parent if Path(options.model).is_dir() else Path()
    source = re.sub(r"[^\w.@+-]+", "_", Path(options.source).absolute().name) or "source"
    fold = "" if options.fold is None else f"-fold{options.fold}"
    folds = "" if options.folds in (None, FOLDS) else f"of{options.folds}"
    folder = options.out or parent / name / f"{source}{fold}{folds}"
    return require_new(folder, options.overwrite, folder=True)


def add_row_format(parser: Parser, formats: Iterable[str]) -> None:
    parser.add_argument("--format", choices=formats, help="(default: by the suffix of --out, else text)")


def add_language(parser: Parser, package: str) -> None:
    """Add --language. Args: package: of the texts."""
    languages = " or ".join(list_languages(package))
    parser.add_argument("--language", default=ENGLISH, help=f"{languages} (default: %(default)s)")


def add_batch(parser: Parser, default: int) -> None:
    parser.add_argument("--batch", type=int, default=default, help="images in a batch (default: %(default)s)")


def add_workers(parser: Parser) -> None:
    parser.add_argument("--workers", type=int, default=0, help="processes that read images (default: none but this)")


def add_device(parser: Parser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps (default: the fastest here)")


def parse_layer(text: str) -> int | str:
    """Parse the index of a layer, or a pattern of its name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def add_fold(parser: Parser, help: str = "only the part that training with --data.fold holds out") -> None:
    parser.add_argument("--fold", type=int, help=help)
    parser.add_argument("--folds", type=int, help=f"the number of folds (default: {FOLDS})")


def choose_folds(options: argparse.Namespace) -> int:
    """Return the number of folds. Raises: ValueError if it is given without the fold."""
    if options.folds is not None and options.fold is None:
        raise ValueError(f"folds must come with the fold that was held out, got folds={options.folds}; add --fold")
    return FOLDS if options.folds is None else options.folds


def add_exclude(parser: Parser) -> None:
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out files and folders with such a name, as '*.gif', or path, as 'cat/old_*'; may be repeated",
    )


def add_reading(parser: Parser) -> None:
    add_exclude(parser)
    add_batch(parser, Reading().batch)
    add_workers(parser)
    add_device(parser)
    parser.add_argument(
        "--reduce",
        type=float,
        metavar="TIMES",
        help="decode JPEGs at 1/2, 1/4 or 1/8 while both sides stay this many times the model's image size; 2 "
        " is faster and changes little (default: decode at full size)",
    )


def make_reading(options: argparse.Namespace) -> Reading:
    return Reading(options.batch, options.workers, options.device, options.reduce, options.exclude)


STDIN = "-"


def collect_images(images: Sequence[str], omissions: Omissions, exclude: Sequence[str] = ()) -> list[Iterable[str]]:
    """Return the paths for each argument: a file, the images below a folder, or the lines of standard input."""
    paths: list[Iterable[str]] = []
    empty: list[str] = []
    if "" in images:
        raise ValueError("images must be paths, got an empty one")
    for image in images:
        if image == STDIN:
            inside: Iterable[str] = read_stdin_lines()
        else:
            files = [*walk_images(Path(image), omissions, exclude)] if Path(image).is_dir() else [image]
            count_sequences(Files(files), omissions)
            inside = files
        paths.append(inside)
        if inside == []:
            empty.append(image)
    if empty:
        raise ValueError(f"a folder of images must hold images, got none in {', '.join(empty)}")
    return paths


Part = Source | list[Iterable[str]]


def open_images(images: Sequence[str], omissions: Omissions, exclude: Sequence[str]) -> list[Part]:
    """Return a source for each argument that is one, and the result of `collect_images` for the files in between."""
    parts: list[Part] = []
    for image in images:
        source = _open_other_source(image, exclude)
        if source is not None:
            omissions.update(source.omissions)
            parts.append(source)
        elif parts and isinstance(parts[-1], list):
            parts[-1] += collect_images([image], omissions, exclude)
        else:
            parts.append(collect_images([image], omissions, exclude))
    return parts


def _open_other_source(name: str, exclude: Sequence[str]) -> Source | None:
    """Open a source; None for an image, a folder of images or a list of them."""
    path = Path(name)
    if name in ("", STDIN) or name.lower().endswith(SUFFIXES) or (path.is_dir() and any(walk_images(path))):
        return None
    from vitkit.data.sources.open import is_source, open_unlabelled  # not needed for files and folders of images

    return open_unlabelled(name, exclude=exclude) if is_source(name) else None


def list_names(part: Part) -> list[str]:
    """Return the names of the images of a part. Args: part: not from standard input."""
    if isinstance(part, Source):
        return [part.get_name(index) for index in range(len(part))]
    return [name for names in part for name in names]


def read_stdin_lines() -> Iterator[str]:
    """Yield the lines of standard input, such as paths, as they arrive, without empty ones."""
    for line in sys.stdin.buffer:
        if text := line.rstrip(b"\r\n"):
            yield os.fsdecode(text)
