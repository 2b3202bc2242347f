"""Predictions as lines of text, CSV or JSON, on the screen or in a new file."""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from vitkit.bundle.bundle import Bundle
from vitkit.data.omissions import Omissions
from vitkit.inference.prediction import TOP, Prediction, UnreadableImage
from vitkit.support.errors import escape_controls, format_count, format_few
from vitkit.support.files import require_new
from vitkit.support.output import format_csv_row, open_output


def write_predictions(
    outcomes: Iterator[Prediction | UnreadableImage],
    form: str,
    width: int,
    top: int | None,
    bundle: Bundle,
    out: Path | None,
    omissions: Omissions,
) -> int:
    """Write predictions in a format and return the exit status: 0 if all images could be read.

    Args: width: of the column of paths in text.
    """
    header, format_row = None, format_json_row if form == "jsonl" else make_text_format(width)
    if form == "csv":
        columns = min(top or TOP, len(bundle.class_names))
        header, format_row = make_label_set_format() if bundle.multilabel else make_csv_format(columns)
    count, failures = write_lines(outcomes, header, format_row, out)
    omissions.unreadable += [str(failure.error) for failure in failures]
    if out is not None:
        written = format_count(count - len(failures), "predictions")
        print(escape_controls(f"written to {out}: {written}"), file=sys.stderr)
    return omissions.report(count)


FORMATS = {".txt": "text", ".csv": "csv", ".jsonl": "jsonl"}


Outcome = Prediction | UnreadableImage


FormatRow = Callable[[Outcome], str | None]


def write_lines(
    outcomes: Iterator[Outcome], header: str | None, format_row: FormatRow, out: Path | None
) -> tuple[int, list[UnreadableImage]]:
    """Write a line for each outcome as it comes; return the number of outcomes, and the unreadable images.

    Raises: ValueError, and writes no file, if not one image could be read.
    """
    failures: list[UnreadableImage] = []
    count = 0
    with open_output(out) as file:
        if header is not None:
            print(header, file=file)
        for outcome in outcomes:
            count += 1
            if isinstance(outcome, UnreadableImage):
                failures.append(outcome)
            if (line := format_row(outcome)) is not None:
                print(line, file=file, flush=out is None)
        if out is not None and count == len(failures):
            errors = format_few(failure.error for failure in failures) or "none was given"
            raise ValueError(f"{out} is not written, as no image could be read: {errors}")
    return count, failures


def choose_format(out: Path | None, form: str | None, overwrite: bool = False) -> str:
    """Return the given format, else that of the file's suffix.

    Raises: ValueError if the file exists and is not to be overwritten.
    """
    if out is None:
        return form or "text"
    require_new(out, overwrite)
    if form is None and out.suffix not in FORMATS:
        raise ValueError(f"out must end in {', '.join(FORMATS)}, got out={out}; or give --format")
    return form or FORMATS[out.suffix]


def make_text_format(width: int) -> FormatRow:
    """Return a format with paths padded to a width; an unreadable image has no line."""

    def format_row(outcome: Outcome) -> str | None:
        if isinstance(outcome, UnreadableImage):
            return None
        pairs = (f"{label} {value:5.1%}" for label, value in zip(outcome.labels, outcome.probabilities, strict=True))
        return "  ".join([f"{outcome.path!s:<{width}}", *pairs])

    return format_row


def make_csv_format(top: int) -> tuple[str, FormatRow]:
    """Return the header and the format of CSV with a label and a probability for each of the first `top` classes."""

    def format_row(outcome: Outcome) -> str:
        if isinstance(outcome, UnreadableImage):
            return format_csv_row([outcome.path, *[""] * (2 * top), outcome.error])
        pairs = zip(outcome.labels, (f"{value:.6g}" for value in outcome.probabilities), strict=True)
        return format_csv_row([outcome.path, *chain.from_iterable(pairs), ""])

    columns = [f"{name}_{rank}" for rank in range(1, top + 1) for name in ("label", "probability")]
    return format_csv_row(["path", *columns, "error"]), format_row


def make_label_set_format() -> tuple[str, FormatRow]:
    """Return the header and the format of CSV with any number of labels in one column, separated by |."""

    def format_row(outcome: Outcome) -> str:
        if isinstance(outcome, UnreadableImage):
            return format_csv_row([outcome.path, "", "", outcome.error])
        values = "|".join(f"{value:.6g}" for value in outcome.probabilities)
        return format_csv_row([outcome.path, "|".join(outcome.labels), values, ""])

    return format_csv_row(["path", "labels", "probabilities", "error"]), format_row


def format_json_row(outcome: Outcome) -> str:
    fields = {name: str(value) if name in ("path", "error") else value for name, value in outcome._asdict().items()}
    return json.dumps(fields, ensure_ascii=False)
