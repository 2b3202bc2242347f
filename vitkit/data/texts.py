"""From what people write as captions to texts; tables, shards and data sets share it."""

from collections.abc import Sequence
from typing import NamedTuple

from vitkit.support.errors import few


class Texts(NamedTuple):
    """The captions of each sample, and the places of those where none can be and where none is."""

    captions: list[tuple[str, ...]]
    odd: list[str]
    empty: list[str]

    @property
    def problems(self) -> list[str]:
        told = {
            "captions must be text, or lists of it, got others": self.odd,
            "every picture must have a caption, got none": self.empty,
        }
        return [f"{problem} in {few(places)}" for problem, places in told.items() if places]


def texts(cells: Sequence[object], places: Sequence[str]) -> Texts:
    """White space around a caption is dropped, and so are empty ones and those that a sample has twice.

    Args: cells: text, or a list of it. places: what a message calls each sample.
    """
    found = [_texts(cell) for cell in cells]
    odd = [f"{place} ({row:.40})" for place, row in zip(places, found, strict=True) if isinstance(row, str)]
    empty = [place for place, row in zip(places, found, strict=True) if not row]
    return Texts([() if isinstance(row, str) else row for row in found], odd, empty)


def _texts(cell: object) -> tuple[str, ...] | str:
    """The captions in a cell; what can be none, as the text of an error."""
    values = cell if isinstance(cell, list | tuple) else (cell,)
    found = []
    for value in values:
        if not (value is None or isinstance(value, str)):
            return str(value) or type(value).__name__
        if value is not None and (text := value.strip()):
            found.append(text)
    return (found[0],) if len(found) == 1 else tuple(dict.fromkeys(found))
