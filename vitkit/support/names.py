"""Lines of texts that people write, and the class names in them."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from vitkit.support.errors import escape_controls, escape_surrogates, format_few, prefix_errors


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, which end with LF, CR LF or CR alone; `str.splitlines` also splits at form feeds,
    U+2028 and others, which may be within a caption or a name."""
    lines = re.split(r"\r\n|\r|\n", text)
    return lines if lines[-1] else lines[:-1]


def read_class_list(path: Path) -> list[str]:
    """Return the class names in a file, one a line in the order of their indices. Empty lines at its end are left out.

    Raises: ValueError for other empty lines, which could be a class or none.
    """
    with prefix_errors(path):
        names = [line.strip() for line in split_lines(path.read_bytes().decode("utf-8-sig"))]
        while names and not names[-1]:
            names.pop()
        if empty := [f"line {number}" for number, name in enumerate(names, start=1) if not name]:
            raise ValueError(f"every line must name a class, got none in {format_few(empty)}")
    return names


@lru_cache(maxsize=10_000)  # for each of a million labels
def escape_name(name: str) -> str:
    """Return the name of a class in one line: every command may print it, and a stranger may have chosen it."""
    return escape_surrogates(escape_controls(name, kept=""))


def number_duplicates(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct class names: the second of two equal ones, as ImageNet has two pairs, becomes "name (2)".

    Names that differ in white space or Unicode form alone are equal, as people see no difference.
    """
    counts: Counter[str] = Counter()
    distinct: list[str] = []
    for name in names:
        counts[key := " ".join(unicodedata.normalize("NFC", name).split())] += 1
        distinct.append(name if counts[key] == 1 else f"{name.strip()} ({counts[key]})")
    return tuple(names) if distinct == [*names] else number_duplicates(distinct)
