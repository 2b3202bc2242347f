"""What is told of work that takes over a second."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

Item = TypeVar("Item")


def progress(items: Iterable[Item], doing: str, total: int | None = None) -> "tqdm[Item]":
    """The items, with a bar once they take over a second, where stderr is a terminal.

    Args: total: bytes, where there are no items and the bar's `update` is told of bytes instead.
    """
    from tqdm import tqdm

    return tqdm(items, doing, total, leave=False, delay=1, disable=None, unit=" B" if total else "", unit_scale=True)
