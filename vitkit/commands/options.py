"""Options that several commands share."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitkit.data.batches import Reading
from vitkit.data.order import FOLDS
from vitkit.data.sources.source import pictures


def add_fold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fold", type=int, help="only what training with --data.fold held out")
    parser.add_argument("--folds", type=int, help=f"of so many (default: {FOLDS})")


def chosen_folds(options: argparse.Namespace) -> int:
    """Raises: ValueError for a number of folds without the fold."""
    if options.folds is not None and options.fold is None:
        raise ValueError(f"folds must come with the fold that was held out, got folds={options.folds}; add --fold")
    return FOLDS if options.folds is None else options.folds


def add_reading(parser: argparse.ArgumentParser) -> None:
    defaults = Reading()
    parser.add_argument("--batch", type=int, default=defaults.batch, help="pictures at a time (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes that read pictures (default: this one alone)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps (default: the fastest here)")
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


def list_images(images: Sequence[str]) -> list[Iterable[str]]:
    """Of each argument the pictures: a file, those below a folder, or those that standard input lists."""
    found: list[Iterable[str]] = []
    empty: list[str] = []
    if "" in images:
        raise ValueError("images must be paths, got an empty one")
    for image in images:
        inside = listed() if image == STDIN else pictures(Path(image)) if Path(image).is_dir() else [image]
        found.append(inside)
        if inside == []:
            empty.append(image)
    if empty:
        raise ValueError(f"a folder of images must hold pictures, got none in {', '.join(empty)}")
    return found


def listed() -> Iterator[str]:
    """The paths on standard input, one a line, as they come."""
    for line in sys.stdin.buffer:
        if path := line.rstrip(b"\r\n"):
            yield os.fsdecode(path)
