"""`vitkit predict`: what a trained classifier sees in pictures."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from vitkit.bundle.image_bundle import Readable
from vitkit.commands import rows
from vitkit.commands.batches import add_reading, chosen_reading
from vitkit.convert.open import open_classifier
from vitkit.data.sources.source import pictures
from vitkit.inference.prediction import TOP, Prediction, Unreadable, results

STDIN = "-"


def named(images: Sequence[str]) -> list[Iterable[str]]:
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("vitkit predict", description="Name what pictures show, in the order given.")
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    parser.add_argument("images", nargs="+", help="picture files, folders to search for them, - for a list on stdin")
    parser.add_argument(
        "--top", type=int, help=f"how many classes to show (default: {TOP}, or all above 50 %% if there may be several)"
    )
    parser.add_argument("--format", choices=rows.FORMATS.values(), help="(default: by the end of --out, else text)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a new file: .txt, .csv, .jsonl (default: the screen)")
    add_reading(parser)
    options = parser.parse_args(arguments)

    form = rows.checked_format(options.out, options.format)
    parts = named(options.images)
    total = None if STDIN in options.images else sum(len(list(part)) for part in parts)
    wide = 0 if total is None else max(len(path) for part in parts for path in part)
    title = None if options.out is None and sys.stdout.isatty() else "predict"  # rows are progress enough
    reading = chosen_reading(options)
    opened = open_classifier(options.model)
    found = results(opened, chain.from_iterable(parts), options.top, reading, title=title, total=total)
    return write_rows(found, form, wide, options.top, opened, options.out)


def write_rows(
    found: Iterator[Prediction | Unreadable], form: str, wide: int, top: int | None, opened: Readable, out: Path | None
) -> int:
    """In this form, with paths so wide; the exit status tells whether all pictures could be read."""
    header, row = None, rows.json_object if form == "jsonl" else rows.text(wide)
    if form == "csv":
        most = min(top or TOP, len(opened.classes))
        header, row = rows.table_of_sets() if opened.several else rows.table(most)
    count, failures = rows.write(found, header, row, out)
    for failure in failures:
        print(f"error: {failure.error}", file=sys.stderr)
    if failures:
        print(f"error: {len(failures)} of {count} pictures could not be read", file=sys.stderr)
    return 1 if failures else 0
