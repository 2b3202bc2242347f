"""`vitkit predict`: what a trained classifier sees in pictures."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn

from vitkit.bundle.image_bundle import Readable
from vitkit.commands import rows
from vitkit.commands.batches import add_reading, chosen_reading
from vitkit.commands.rows import Prediction, Unreadable
from vitkit.convert.open import open_classifier
from vitkit.data.batches import Reading, groups
from vitkit.data.pictures import Batch
from vitkit.data.preprocess import PictureError
from vitkit.data.sources.source import pictures
from vitkit.support.devices import present

TOP = 3
STDIN = "-"


def refuse(error: PictureError) -> NoReturn:
    raise error


def predict(
    model: str | Path | Readable,
    paths: str | Path | Iterable[str | Path],
    *,
    top: int | None = None,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    reduce: float | None = None,
    unreadable: Callable[[PictureError], None] = refuse,
) -> Iterator[Prediction]:
    """Classify picture files, in order, by the model in a folder.

    A model that was trained on sets of labels gives each class its own sigmoid, and those above 0.5 are shown.

    Args:
        model: also what `vitkit.zero_shot` gives.
        paths: also just one.
        top: so many classes at most, the likeliest (default: 3, or all above 0.5).
        reduce: as in Pictures.
        unreadable: gets the error of each picture that fails.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    for found in results(open_classifier(model), paths, top, Reading(batch, workers, device, reduce)):
        if isinstance(found, Prediction):
            yield found
        else:
            unreadable(found.error)


def results(
    opened: Readable,
    paths: Iterable[str | Path],
    top: int | None,
    reading: Reading,
    title: str | None = None,
    total: int | None = None,
) -> Iterator[Prediction | Unreadable]:
    """One for every path, in order."""
    check(top, reading)
    opened.to(present(reading.device))
    for names, batch in groups((os.fspath(path) for path in paths), opened.preprocess, reading, title, total):
        yield from told(opened, names, batch, top)


def check(top: int | None, reading: Reading) -> None:
    if (top is not None and top < 1) or reading.batch < 1:
        raise ValueError(f"top and batch must be at least 1, got top={top}, batch={reading.batch}")


def told(opened: Readable, names: Sequence[str], batch: Batch, top: int | None) -> Iterator[Prediction | Unreadable]:
    """One for every name; `batch.indices` are places among them."""
    network, head, weight = opened.model, opened.head or nn.Identity(), next(opened.model.parameters())
    with torch.inference_mode():  # not around the loop: it would be open while the caller goes on
        logits = head(opened.pool(network.features(batch.images.to(weight))))
    if not logits.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others for {names[0]} or what follows")
    read = dict(zip(batch.indices.tolist(), likeliest(logits.float(), top, opened.several), strict=True))
    lines = iter(batch.skipped)
    for index, name in enumerate(map(Path, names)):
        if index not in read:
            yield Unreadable(name, PictureError(next(lines)))
            continue
        indices, values = read[index]
        yield Prediction(name, tuple(opened.classes[label] for label in indices), tuple(values))


def likeliest(logits: Tensor, top: int | None, several: bool) -> Iterator[tuple[list[int], list[float]]]:
    """Of each row, classes and their probabilities."""
    most = min(top or (logits.shape[1] if several else TOP), logits.shape[1])
    best = (logits.sigmoid() if several else logits.softmax(dim=1)).topk(most)
    for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        shown = sum(value > 0.5 for value in values) if several else most
        yield indices[:shown], values[:shown]


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
