"""Progress bars for work that takes over a second."""

from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm


def make_progress_bar(total: int | None, title: str | None, unit: str = " pictures") -> tqdm:
    """Return a progress bar, shown after a second if it has a title and standard error is a terminal."""
    hidden = None if title else True
    return tqdm(total=total, desc=title, unit=unit, delay=1, disable=hidden, leave=False, dynamic_ncols=True)


Item = TypeVar("Item")


def track_progress(items: Iterable[Item], title: str, total: int | None = None) -> "tqdm[Item]":
    """Wrap items in a progress bar, shown after a second if standard error is a terminal.

    Args: total: number of bytes, to pass to `update` instead of iterating over items.
    """
    return tqdm(items, title, total, leave=False, delay=1, disable=None, unit=" B" if total else "", unit_scale=True)
