"""Options that several commands share."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitkit.data.batches import Reading
from vitkit.data.omissions import Omissions
from vitkit.data.order import FOLDS
from vitkit.data.sources.source import COLUMNS, SUFFIXES, Source, walk_images
from vitkit.support.texts import ENGLISH, list_languages

Parser = argparse.ArgumentParser | argparse._ArgumentGroup


IMAGES = "picture files, folders to search for them, - for a list on stdin"


def add_images(parser: Parser, help: str = IMAGES) -> None:
    parser.add_argument("images", nargs="+", help=help)


def add_unlabelled(parser: Parser) -> None:
    parser.add_argument("--unlabelled", action="store_true", help="source is a picture, or any folder of pictures")


def add_columns(
    parser: Parser, default: Sequence[str] | None = COLUMNS, second: str = "LABEL", help: str = "of a table"
) -> None:
    parser.add_argument("--columns", nargs=2, default=default, metavar=("FILE", second), help=help)


def add_words(parser: Parser) -> None:
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="of a CLIP: words, a file of them, or imagenet")


def add_size(parser: Parser) -> None:
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="of the image, in pixels")


def add_out(parser: Parser, metavar: str, help: str, *, short: Sequence[str] = ()) -> None:
    """Add --out, without which the command does not run. Args: short: other names."""
    parser.add_argument(*short, "--out", type=Path, required=True, metavar=metavar, help=help)


def add_optional_out(parser: Parser, help: str, metavar: str | None = "DIR", default: Path | None = None) -> None:
    parser.add_argument("--out", type=Path, default=default, metavar=metavar, help=help)


def choose_report_folder(options: argparse.Namespace, name: str) -> Path:
    """Return --out, else the folder of this name beside the model's folder, else here."""
    beside = Path(options.model).resolve().parent if Path(options.model).is_dir() else Path()
    return options.out or beside / name


def add_row_format(parser: Parser, formats: Iterable[str]) -> None:
    parser.add_argument("--format", choices=formats, help="(default: by the end of --out, else text)")


def add_language(parser: Parser, package: str) -> None:
    """Args: package: that the texts lie in."""
    known = " or ".join(list_languages(package))
    parser.add_argument("--language", default=ENGLISH, help=f"{known} (default: %(default)s)")


def add_batch(parser: Parser, default: int) -> None:
    parser.add_argument("--batch", type=int, default=default, help="pictures at a time (default: %(default)s)")


def add_workers(parser: Parser) -> None:
    parser.add_argument("--workers", type=int, default=0, help="processes that read pictures (default: this one alone)")


def add_device(parser: Parser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps (default: the fastest here)")


def parse_layer(text: str) -> int | str:
    """Parse the index of a layer, or a pattern of its name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def add_fold(parser: Parser, help: str = "only what training with --data.fold held out") -> None:
    parser.add_argument("--fold", type=int, help=help)
    parser.add_argument("--folds", type=int, help=f"of so many (default: {FOLDS})")


def chosen_folds(options: argparse.Namespace) -> int:
    """Raises: ValueError for a number of folds without the fold."""
    if options.folds is not None and options.fold is None:
        raise ValueError(f"folds must come with the fold that was held out, got folds={options.folds}; add --fold")
    return FOLDS if options.folds is None else options.folds


def add_reading(parser: Parser) -> None:
    add_batch(parser, Reading().batch)
    add_workers(parser)
    add_device(parser)
    parser.add_argument(
        "--reduce",
        type=float,
        metavar="TIMES",
        help="decode JPEGs at 1/2, 1/4 or 1/8 while both sides stay this many times what the model reads; 2 is faster "
        "and nearly the same (default: decode them whole)",
    )


def chosen_reading(options: argparse.Namespace) -> Reading:
    return Reading(options.batch, options.workers, options.device, options.reduce)


STDIN = "-"


def list_images(images: Sequence[str], omissions: Omissions) -> list[Iterable[str]]:
    """Return the images that the arguments name: a file, those below a folder, or those that standard input lists."""
    found: list[Iterable[str]] = []
    empty: list[str] = []
    if "" in images:
        raise ValueError("images must be paths, got an empty one")
    for image in images:
        inside = (
            listed() if image == STDIN else [*walk_images(Path(image), omissions)] if Path(image).is_dir() else [image]
        )
        found.append(inside)
        if inside == []:
            empty.append(image)
    if empty:
        raise ValueError(f"a folder of images must hold pictures, got none in {', '.join(empty)}")
    return found


Part = Source | list[Iterable[str]]


def open_images(images: Sequence[str], omissions: Omissions) -> list[Part]:
    """Return the sources that the arguments name, and between them what `list_images` gives of files and folders."""
    parts: list[Part] = []
    for image in images:
        source = _open_other_source(image)
        if source is not None:
            omissions.update(source.omissions)
            parts.append(source)
        elif parts and isinstance(parts[-1], list):
            parts[-1] += list_images([image], omissions)
        else:
            parts.append(list_images([image], omissions))
    return parts


def _open_other_source(name: str) -> Source | None:
    """Open what is neither an image, nor a folder of some, nor a list of them; None for these."""
    path = Path(name)
    if name in ("", STDIN) or name.lower().endswith(SUFFIXES) or (path.is_dir() and any(walk_images(path))):
        return None
    from vitkit.data.sources.open import is_source, open_unlabelled  # what files and folders of images do not need

    return open_unlabelled(name) if is_source(name) else None


def list_names(part: Part) -> list[str]:
    """Return what the images of a part are called. Args: part: none that standard input lists."""
    if isinstance(part, Source):
        return [part.get_name(index) for index in range(len(part))]
    return [name for names in part for name in names]


def listed() -> Iterator[str]:
    """The paths on standard input, one a line, as they come."""
    for line in sys.stdin.buffer:
        if path := line.rstrip(b"\r\n"):
            yield os.fsdecode(path)
