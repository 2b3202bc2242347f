"""Text to the screen or to a new file, and rows of CSV."""

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from vitkit.support.files import replace_file


@contextmanager
def open_output(out: Path | None) -> Iterator[TextIO]:
    """Standard output, or a new file that is there only when it is whole. A name that is not text is spelt out."""
    if out is None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            yield sys.stdout
        except BrokenPipeError:  # `| head` has read enough; Python would fail again when it flushes at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    with replace_file(out) as beside, beside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        yield file


def format_csv_row(values: Sequence[object]) -> str:
    csv.writer(line := io.StringIO(), lineterminator="").writerow(values)
    return line.getvalue()
