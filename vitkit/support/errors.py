"""The wording of errors: where a problem lies, near names, the first few of many."""

import difflib
import os
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def suggest(name: str, valid: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:80], valid, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def suggest_path(path: Path) -> str:
    """The existing path that one with a misspelt end may mean."""
    if path.exists() or not path.parent.is_dir():
        return ""
    return suggest(str(path), [str(path.parent / entry) for entry in os.listdir(path.parent)])


def format_few(things: Iterable[object], shown: int = 3) -> str:
    """The first of them, and how many more there are."""
    things = list(things)
    more = f" and {len(things) - shown:,} more" if len(things) > shown else ""
    return ", ".join(map(str, things[:shown])) + more


@contextmanager
def prefix_errors(path: Path) -> Iterator[Path]:
    """Whatever goes wrong inside becomes one line that starts with the file."""
    try:
        yield path
    except Exception as error:  # of yaml, json, safetensors, jsonargparse, and of any constructor
        raise ValueError(f"{path}: {textwrap.shorten(str(error), 400)}") from error
