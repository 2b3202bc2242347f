"""A source with the captions of each image: read, compared, and split so that equal ones stay together."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from vitkit.data.order import check_fold, derive, shuffled
from vitkit.data.sources.source import Source
from vitkit.support.errors import few

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


def attach_captions(
    pictures: Source, captions: Sequence[tuple[str, ...]], alike: Iterable[Sequence[Hashable]] = ()
) -> Captioned:
    """Args: alike: further keys of each picture; those that share one are kin."""
    shared = joined([map(normalise_caption, own) for own in captions])
    further = list(alike)
    kin = joined([(("concept", one), *more) for one, more in zip(shared, further, strict=True)]) if further else shared
    return Captioned(unlabelled(pictures), captions, shared, kin)


def normalise_caption(caption: str) -> str:
    """Captions that differ in case or white space alone are equal: CLIP's tokenizer reads the same in them."""
    return " ".join(caption.lower().split())


def by_spelling(captions: Iterable[str]) -> dict[str, str]:
    """Captions by how they are `normalise_caption`, of equal ones the first, in the order in which they come."""
    first: dict[str, str] = {}
    for caption in captions:
        first.setdefault(normalise_caption(caption), caption)
    return first


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
    """The samples outside and inside one of `folds` parts, which never change and part no kin.

    Kin that are more than a fold, as where most pictures have one caption too, always train.
    """
    check_fold(folds, fold)
    sizes = Counter(kin)
    if len(sizes) < folds:
        raise ValueError(f"captions must differ between at least folds={folds} pictures, got {len(sizes)}; give val")
    groups = sorted(group for group, size in sizes.items() if size * folds <= len(kin))
    if len(groups) < folds:
        most = max(sizes.values())
        raise ValueError(f"captions must not join more than a fold, got {most:,} of {len(kin):,} pictures; give val")
    held_out = set(shuffled(groups, derive(len(groups)))[fold::folds])
    outside = [sample for sample, group in enumerate(kin) if group not in held_out]
    return outside, [sample for sample, group in enumerate(kin) if group in held_out]


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
