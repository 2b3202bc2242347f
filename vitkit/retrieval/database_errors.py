"""What the database complains of, in one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

OWN = "lance error: "  # what it begins its RuntimeErrors with


def reason(error: Exception) -> str:
    """Its words, without the places in its own code."""
    return re.sub(r",? /\S+\.rs:\d+:\d+", "", " ".join(str(error).split())).removeprefix(OWN)[:300]


@contextmanager
def asking(where: str) -> Iterator[None]:
    """Raises: ValueError where the database says that this is no condition."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if not where:
            raise
        raise ValueError(f"where must be a condition on columns, got where={where!r:.300}: {reason(error)}") from error


@contextmanager
def readable(path: object) -> Iterator[None]:
    """Raises: ValueError where the database cannot be read, as where a file of it is cut short."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(OWN):
            raise
        raise ValueError(f"db must be readable, got {path}: {reason(error)}; index into another --db") from error


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Raises: ValueError where the database cannot be written, as on a full disk."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(OWN):
            raise
        whole = "what was committed is whole, and the same command goes on"
        raise ValueError(f"db must be writable, got {path}: {reason(error)}; {whole}") from error
