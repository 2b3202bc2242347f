"""What a classifier says of each picture, as lines of text, CSV or JSON, on the screen or in a new file."""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from vitkit.bundle.bundle import Bundle
from vitkit.data.omissions import Omissions
from vitkit.inference.prediction import TOP, Prediction, Unreadable
from vitkit.support.files import require_new_file
from vitkit.support.output import format_csv_row, open_output


def write_rows(
    found: Iterator[Prediction | Unreadable],
    form: str,
    wide: int,
    top: int | None,
    bundle: Bundle,
    out: Path | None,
    omissions: Omissions,
) -> int:
    """In this form, with paths so wide; the exit status tells whether all pictures could be read."""
    header, row = None, json_object if form == "jsonl" else text(wide)
    if form == "csv":
        most = min(top or TOP, len(bundle.class_names))
        header, row = table_of_sets() if bundle.multilabel else table(most)
    count, failures = write(found, header, row, out)
    omissions.unreadable += [str(failure.error) for failure in failures]
    return omissions.report(count)


FORMATS = {".txt": "text", ".csv": "csv", ".jsonl": "jsonl"}


Found = Prediction | Unreadable


Row = Callable[[Found], str | None]


def write(found: Iterator[Found], header: str | None, row: Row, out: Path | None) -> tuple[int, list[Unreadable]]:
    """A line for each, as they come; gives back how many there were, and those that could not be read."""
    failures: list[Unreadable] = []
    count = 0
    with open_output(out) as file:
        if header is not None:
            print(header, file=file)
        for one in found:
            count += 1
            if isinstance(one, Unreadable):
                failures.append(one)
            if (line := row(one)) is not None:
                print(line, file=file, flush=out is None)
    return count, failures


def checked_format(out: Path | None, named: str | None) -> str:
    """The format that is named, else that of the file's ending. Raises: ValueError if the file cannot be new."""
    if out is None:
        return named or "text"
    require_new_file(out)
    if named is None and out.suffix not in FORMATS:
        raise ValueError(f"out must end in {', '.join(FORMATS)}, got out={out}; or give --format")
    return named or FORMATS[out.suffix]


def text(wide: int) -> Row:
    """Columns, the first so many letters wide; a picture that could not be read has no line."""

    def row(found: Found) -> str | None:
        if isinstance(found, Unreadable):
            return None
        shown = (f"{label} {value:5.1%}" for label, value in zip(found.labels, found.probabilities, strict=True))
        return "  ".join([f"{found.path!s:<{wide}}", *shown])

    return row


def table(top: int) -> tuple[str, Row]:
    """The header and the rows of CSV: a label and a probability for each of the first `top` classes."""

    def row(found: Found) -> str:
        if isinstance(found, Unreadable):
            return format_csv_row([found.path, *[""] * (2 * top), found.error])
        pairs = zip(found.labels, (f"{value:.6g}" for value in found.probabilities), strict=True)
        return format_csv_row([found.path, *chain.from_iterable(pairs), ""])

    columns = [f"{name}_{rank}" for rank in range(1, top + 1) for name in ("label", "probability")]
    return format_csv_row(["path", *columns, "error"]), row


def table_of_sets() -> tuple[str, Row]:
    """CSV where a picture has any number of labels: they stand in one column, with | between."""

    def row(found: Found) -> str:
        if isinstance(found, Unreadable):
            return format_csv_row([found.path, "", "", found.error])
        values = "|".join(f"{value:.6g}" for value in found.probabilities)
        return format_csv_row([found.path, "|".join(found.labels), values, ""])

    return format_csv_row(["path", "labels", "probabilities", "error"]), row


def json_object(found: Found) -> str:
    fields = {name: str(value) if name in ("path", "error") else value for name, value in found._asdict().items()}
    return json.dumps(fields, ensure_ascii=False)
