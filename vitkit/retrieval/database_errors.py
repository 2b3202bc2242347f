"""Errors of the database as one line each."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

PREFIX = "lance error: "  # of the RuntimeErrors that Lance raises


def format_reason(error: Exception) -> str:
    """Return the message of an error without the places in Lance's source."""
    return re.sub(r",? /\S+\.rs:\d+:\d+", "", " ".join(str(error).split())).removeprefix(PREFIX)[:300]


@contextmanager
def explain_condition_errors(where: str) -> Iterator[None]:
    """Raise a ValueError where the database rejects a condition."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if not where:
            raise
        reason = format_reason(error)
        raise ValueError(f"where must be a condition on columns, got where={where!r:.300}: {reason}") from error


@contextmanager
def explain_read_errors(path: object) -> Iterator[None]:
    """Raise a ValueError where the database cannot be read, as with a truncated file."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(PREFIX):
            raise
        raise ValueError(f"db must be readable, got {path}: {format_reason(error)}; index into another --db") from error


@contextmanager
def explain_write_errors(path: object) -> Iterator[None]:
    """Raise a ValueError where the database cannot be written, as on a full disk."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(PREFIX):
            raise
        hint = "what was committed is intact, and the same command continues"
        raise ValueError(f"db must be writable, got {path}: {format_reason(error)}; {hint}") from error
