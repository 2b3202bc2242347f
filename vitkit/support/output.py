"""Text output, to the terminal or to a new file, and rows of CSV."""

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from vitkit.support.errors import escape_controls
from vitkit.support.files import replace_file


class Terminal:
    """Standard output, which may be a terminal: control characters, such as ESC in class names, are escaped."""

    def write(self, text: str) -> int:
        return sys.stdout.write(escape_controls(text))

    def flush(self) -> None:
        sys.stdout.flush()


@contextmanager
def open_output(out: Path | None) -> Iterator[TextIO | Terminal]:
    """Yield the terminal, or a file that appears only when it is whole. Names that are no text are escaped."""
    if out is None:
        try:
            yield Terminal()
        except BrokenPipeError:  # a reader such as `head` has closed; Python would fail again at its last flush
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    with (
        replace_file(out) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        yield file


def format_csv_row(values: Sequence[object]) -> str:
    """Format one row of CSV, without a line end."""
    csv.writer(line := io.StringIO(), lineterminator="").writerow(values)
    return line.getvalue()
