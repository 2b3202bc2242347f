"""Where pictures with captions come from. `open_captioned` finds what a name means."""

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.configs import near
from vitkit.data import built_in, emoji
from vitkit.data.order import derive, shuffled
from vitkit.data.sources import Source

TEXT_COLUMNS = ("file_name", "text")


class Captioned(NamedTuple):
    """Pictures and the captions of each, one or more.

    Args:
        pictures: their labels are -1.
        concepts: a number for each picture; equal ones share a caption, so that each suits what the other shows.
        kin: a number for each; of equal ones, such as pictures that look alike, all train or none.
    """

    pictures: Source
    captions: Sequence[tuple[str, ...]]
    concepts: list[int]
    kin: list[int]


def captioned(
    pictures: Source, captions: Sequence[tuple[str, ...]], alike: Iterable[Sequence[Hashable]] = ()
) -> Captioned:
    """Args: alike: further keys of each picture; those that share one are kin."""
    shared = joined(captions)
    keys = [list(more) for more in alike] or [[] for _ in captions]
    kin = joined([(("concept", concept), *more) for concept, more in zip(shared, keys, strict=True)])
    return Captioned(unlabelled(pictures), captions, shared, kin)


def unlabelled(source: Source) -> Source:
    source.classes, source.labels = (), [-1] * len(source)
    return source


def joined(keys: Sequence[Iterable[Hashable]]) -> list[int]:
    """Numbers from 0 in order of appearance: equal for two that share a key, or are joined by others that do."""
    parent = list(range(len(keys)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    first: dict[Hashable, int] = {}
    for index, own in enumerate(keys):
        for key in own:
            a, b = sorted((root(first.setdefault(key, index)), root(index)))
            parent[b] = a
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(index), len(numbers)) for index in range(len(keys))]


def split_kin(kin: Sequence[int], folds: int, fold: int) -> tuple[list[int], list[int]]:
    """The samples outside and inside one of `folds` parts, which never change and part no kin."""
    if not (folds >= 2 and 0 <= fold < folds):
        raise ValueError(f"folds must be at least 2 and fold one of 0..folds-1, got folds={folds}, fold={fold}")
    groups = sorted(set(kin))
    if len(groups) < folds:
        raise ValueError(f"captions must differ between at least folds={folds} pictures, got {len(groups)}; give val")
    held_out = set(shuffled(groups, derive(len(groups)))[fold::folds])
    outside = [sample for sample, group in enumerate(kin) if group not in held_out]
    return outside, [sample for sample, group in enumerate(kin) if group in held_out]


def openmoji() -> Captioned:
    """1,896 emoji of 80x80 pixels in colour, by OpenMoji (CC BY-SA 4.0), with their English names and bynames.

    Kin are the women, men and persons of one activity, and pictures that look alike, such as some flags.
    """
    found, names = list(emoji.drawn()), emoji.captions()
    captions = [names[one.symbol] for one in found]
    stems = [emoji.stem(one[0]) for one in captions]
    alike = emoji.alike([one.pixels for one in found])
    kin = [(("stem", stem), ("look", look)) for stem, look in zip(stems, alike, strict=True)]
    pictures = built_in.Arrays("openmoji", np.stack([one.pixels for one in found]), (), [-1] * len(found))
    return captioned(pictures, captions, kin)


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def numbers(open_digits: Callable[[], Source]) -> Captioned:
    """Digits, whose captions are their names."""
    pictures = open_digits()
    captions = [(NUMBERS[label],) for label in pictures.labels if isinstance(label, int)]
    # The names are known to both sides: it is pictures that are held out.
    return Captioned(unlabelled(pictures), captions, joined(captions), list(range(len(captions))))


BUILT_IN: dict[str, Callable[[], Captioned]] = {
    "openmoji": openmoji,
    "digits": lambda: numbers(built_in.digits),
    "mnist5k": lambda: numbers(built_in.mnist5k),
}


def open_captioned(name: str, columns: tuple[str, str] = TEXT_COLUMNS) -> Captioned:
    """A built-in set by its name.

    Args: columns: what a table or data set calls the picture and its caption.
    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    path = Path(name).expanduser()
    if os.sep in name or path.exists():
        raise ValueError(f"source must exist, got source={name}")
    raise ValueError(f"source must be one of {', '.join(BUILT_IN)}, got source={name}{near(name, BUILT_IN)}")
