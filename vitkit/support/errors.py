"""Parts of messages: the file at fault, names to suggest, counts, the first few of many, escaped control characters."""

import difflib
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL = r"[\x00-\x1f\x7f-\x9f]"  # could move a terminal's cursor


class InputWarning(UserWarning):
    """A warning of what is guessed or lost in the user's inputs; commands print it as a note."""


def suggest(name: str, valid: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the valid name that is most similar, or "" if none is."""
    close = difflib.get_close_matches(name[:80], valid, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def suggest_path(path: Path) -> str:
    """Return the suggestion of a path in the same folder for a path that does not exist."""
    if path.exists() or not path.parent.is_dir():
        return ""
    return suggest(str(path), [str(path.parent / entry) for entry in os.listdir(path.parent)])


def format_few(items: Iterable[object], shown: int = 3) -> str:
    """List the first few items and the number of the others."""
    items = list(items)
    more = f" and {len(items) - shown:,} more" if len(items) > shown else ""
    return ", ".join(map(str, items[:shown])) + more


PLURAL = r"(\w+?)(?:(?<=ss|ch)es|s)\b(?: and (\w+?)s\b)?"


def format_count(count: int, plural: str) -> str:
    """Return a count with its unit, whose first plural becomes a singular for one: 2 hidden files, 1 hidden file."""
    if count != 1:
        return f"{count:,} {plural}"
    return "1 " + re.sub(PLURAL, lambda match: " or ".join(filter(None, match.groups())), plural, count=1)


def escape_controls(text: str, kept: str = "\t\n") -> str:
    """Return text for a terminal: control characters as \\u001b, as JSON has them, but tabs and line ends."""
    return re.sub(CONTROL, lambda match: match[0] if match[0] in kept else f"\\u{ord(match[0]):04x}", text)


def escape_surrogates(text: str) -> str:
    """Return text that UTF-8 can hold: bytes of a file name that are not UTF-8 become \\udcff, as JSON has them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def prefix_errors(path: Path) -> Iterator[Path]:
    """Turn any error inside into a ValueError of one line that starts with the path."""
    try:
        yield path
    except Exception as error:  # of yaml, json, safetensors, jsonargparse, and of any constructor
        raise ValueError(f"{path}: {textwrap.shorten(str(error), 400)}") from error
