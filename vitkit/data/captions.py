"""Where pictures with captions come from. `open_captioned` finds what a name means."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vitkit.data import built_in, emoji
from vitkit.data.opening import Kinds, opened
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
    shared = joined([map(spelled, own) for own in captions])
    further = list(alike)
    kin = joined([(("concept", one), *more) for one, more in zip(shared, further, strict=True)]) if further else shared
    return Captioned(unlabelled(pictures), captions, shared, kin)


def spelled(caption: str) -> str:
    """Captions that differ in case or white space alone are equal: CLIP's tokenizer reads the same in them."""
    return " ".join(caption.lower().split())


def by_spelling(captions: Iterable[str]) -> dict[str, str]:
    """Captions by how they are `spelled`, of equal ones the first, in the order in which they come."""
    first: dict[str, str] = {}
    for caption in captions:
        first.setdefault(spelled(caption), caption)
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
    if not (folds >= 2 and 0 <= fold < folds):
        raise ValueError(f"folds must be at least 2 and fold one of 0..folds-1, got folds={folds}, fold={fold}")
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


DIGITS: dict[str, Callable[[], Captioned]] = {  # whose pictures are those of the labelled sets of these names
    "digits": lambda: numbers(built_in.digits),
    "mnist5k": lambda: numbers(built_in.mnist5k),
}
BUILT_IN = {"openmoji": openmoji, **DIGITS}


def open_captioned(name: str, columns: tuple[str, str] = TEXT_COLUMNS) -> Captioned:
    """What `open_source` understands, with captions in the place of labels, and JSON of COCO or Karpathy.

    A folder is a table metadata.csv, .tsv, .jsonl or .parquet, else shards, else pictures x.jpg each beside its x.txt.
    FILE.json@SPLIT is one of Karpathy's splits; see `coco.open_json`.

    Args: columns: what a table or data set calls the picture and its caption.
    Raises: ValueError, one line that says what is wrong and what is possible.
    """
    from vitkit.data import caption_folders, caption_shards, caption_tables, coco, hub

    if not name.startswith(hub.SCHEME) and (found := coco.parse(name)):
        return coco.open_json(*found)
    return opened(
        name,
        Kinds(
            BUILT_IN,
            hub=lambda name: caption_tables.open_hub(name, columns),
            folder=lambda root: caption_folders.open_folder(root, columns),
            shards=lambda paths: caption_shards.index(paths, columns[1]),
            table=lambda path: caption_tables.open_table(path, columns),
            more=f"captions ({coco.SUFFIX}), ",
        ),
    )
