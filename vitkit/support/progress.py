"""What is told of work that takes over a second."""

from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm


def make_progress_bar(total: int | None, title: str | None, unit: str = " pictures") -> tqdm:
    """Where standard error is a terminal, for what takes over a second and has a title."""
    hidden = None if title else True
    return tqdm(total=total, desc=title, unit=unit, delay=1, disable=hidden, leave=False, dynamic_ncols=True)


Item = TypeVar("Item")


def track_progress(items: Iterable[Item], doing: str, total: int | None = None) -> "tqdm[Item]":
    """The items, with a bar once they take over a second, where stderr is a terminal.

    Args: total: bytes, where there are no items and the bar's `update` is told of bytes instead.
    """
    return tqdm(items, doing, total, leave=False, delay=1, disable=None, unit=" B" if total else "", unit_scale=True)
