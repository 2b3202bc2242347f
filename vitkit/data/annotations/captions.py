"""Captions: read, compared, and split so that images with equal ones stay together."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from vitkit.data.annotations.annotation import Annotation, Members, Parsed
from vitkit.data.annotations.labels import get_item_feature
from vitkit.data.annotations.no_annotation import remove_labels
from vitkit.data.annotations.raw_text import decode_json, decode_text
from vitkit.data.order import split_groups
from vitkit.data.sources.sample_list import Listing
from vitkit.data.sources.source import Source
from vitkit.data.sources.text_files import TEXTS_BESIDE
from vitkit.support.errors import format_few
from vitkit.support.names import split_lines

TEXT_COLUMNS = ("file_name", "text")
MEMBERS = ("caption", "text")  # keys of a shard's .json, img2dataset's first
HUB_COLUMNS = ("text", "caption", "captions")  # usual names on the hub
TEXT_TYPES = ("string", "large_string")


class Captioned(NamedTuple):
    """Pictures and the captions of each, one or more.

    Args:
        pictures: their labels are -1.
        positives: a number for each image; images with equal numbers share a caption, and are positives of it.
        groups: a number for each image; a split keeps images with equal numbers, such as near-duplicates, together.
    """

    pictures: Source
    captions: Sequence[tuple[str, ...]]
    positives: list[int]
    groups: list[int]


class Captions(Annotation[Captioned]):
    """One or more captions for each image; a source's samples of one image file are one sample.

    Of every source, samples without a caption are left out and counted if others have one. Images that share a caption
    are positives of each other, and are in one part of a split.

    Args: optional: images may be without captions, and tables without a column of them.
    """

    columns = TEXT_COLUMNS
    folder = TEXTS_BESIDE
    members = ".json or .txt"

    def __init__(self, optional: bool = False) -> None:
        self.optional = optional

    def parse(self, listing: Listing) -> Parsed[Captioned]:
        parsed = parse_texts(listing.annotations, listing.places)
        samples = list(range(len(parsed.captions)))
        if self.optional:
            parsed = parsed._replace(empty=[])
        if parsed.empty and any(parsed.captions):
            listing.omissions.add("samples without a caption", parsed.empty)
            parsed = parsed._replace(empty=[])
            samples = [row for row in samples if parsed.captions[row]]
        rows: dict[Hashable, int] = {}
        captions: dict[int, tuple[str, ...]] = {}
        for sample in samples:
            row = rows.setdefault(listing.get_key(sample), sample)
            known = captions.get(row, ())
            captions[row] = tuple(dict.fromkeys(known + parsed.captions[sample])) if known else parsed.captions[sample]
        groups = None if listing.groups is None else [listing.groups[row] for row in captions]
        return Parsed(
            list(captions),
            parsed.problems,
            lambda source: attach_captions(source, list(captions.values()), groups),
        )

    def split(self, target: Captioned, folds: int, fold: int) -> tuple[list[int], list[int]]:
        return split_groups(target.groups, folds, fold)

    def find_columns(self, features: Mapping[str, object], column: str) -> list[str]:
        """Return the usual name, else every column that holds texts or lists of them."""
        if column != TEXT_COLUMNS[1]:
            return []
        usual = [name for name in HUB_COLUMNS if name in features][:1]
        return usual or [
            name for name in features if getattr(get_item_feature(features[name]), "dtype", "") in TEXT_TYPES
        ]

    def read_members(self, content: Members, column: str) -> object:
        """Return the value of `column` in a .json, by default of `caption` or `text`; else the lines of a .txt.

        A member `column` is read as either of them.
        """
        member, text, requested = content("json"), None, content(column.lower())
        if requested is not None:
            member, text = (requested, None) if column.lower().endswith("json") else (None, requested)
        if member is not None:
            values = decode_json(member)
            if isinstance(values, Exception):
                return values
            keys = MEMBERS if requested is not None or column == TEXT_COLUMNS[1] else (column,)
            if (key := next((key for key in keys if values.get(key)), None)) is not None:
                return values[key]
        lines = decode_text((content("txt") if text is None else text) or b"")
        return split_lines(lines) if isinstance(lines, str) else lines


CAPTIONS, CAPTIONS_IF_ANY = Captions(), Captions(optional=True)


def attach_captions(
    pictures: Source, captions: Sequence[tuple[str, ...]], groups: Sequence[Iterable[Hashable]] | None = None
) -> Captioned:
    """Attach captions to images. Args: groups: the keys of each image; images that share one are one group. By default
    the captions are the keys."""
    positives = number_groups([map(normalise_caption, texts) for texts in captions])
    return Captioned(
        remove_labels(pictures), captions, positives, positives if groups is None else number_groups(groups)
    )


def normalise_caption(caption: str) -> str:
    """Return a caption without differences in case and white space, as CLIP's tokenizer reads it."""
    return " ".join(caption.lower().split())


def index_captions(captions: Iterable[str]) -> dict[str, str]:
    """Return the first caption of each normalised one, in the order of the captions."""
    first: dict[str, str] = {}
    for caption in captions:
        first.setdefault(normalise_caption(caption), caption)
    return first


def number_groups(keys: Sequence[Iterable[Hashable]]) -> list[int]:
    """Return the number of each item's group, from 0 in order of appearance: items that share a key are one group."""
    parent = list(range(len(keys)))

    def find_root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    first: dict[Hashable, int] = {}
    for index, item in enumerate(keys):
        for key in item:
            a, b = sorted((find_root(first.setdefault(key, index)), find_root(index)))
            parent[b] = a
    numbers: dict[int, int] = {}
    return [numbers.setdefault(find_root(index), len(numbers)) for index in range(len(keys))]


class Texts(NamedTuple):
    """The captions of each sample, and the places of samples whose captions are no text, or empty."""

    captions: list[tuple[str, ...]]
    odd: list[str]
    empty: list[str]

    @property
    def problems(self) -> list[str]:
        faults = {
            "captions must be text, or lists of it, got others": self.odd,
            "every picture must have a caption, got none": self.empty,
        }
        return [f"{problem} in {format_few(places)}" for problem, places in faults.items() if places]


def parse_texts(cells: Sequence[object], places: Sequence[str]) -> Texts:
    """Parse the captions of each sample. Blanks around a caption, empty captions and repeated ones are dropped.

    Args: cells: text, or a list of it. places: the name of each sample in messages.
    """
    rows = [_parse_cell(cell) for cell in cells]
    odd = [f"{place} ({row:.40})" for place, row in zip(places, rows, strict=True) if isinstance(row, str)]
    empty = [place for place, row in zip(places, rows, strict=True) if not row]
    return Texts([() if isinstance(row, str) else row for row in rows], odd, empty)


def _parse_cell(cell: object) -> tuple[str, ...] | str:
    """Return the captions in a cell, or the text of an error for a cell that holds anything else."""
    values = cell if isinstance(cell, list | tuple) else (cell,)
    captions = []
    for value in values:
        if not (value is None or isinstance(value, str)):
            return str(value) or type(value).__name__
        if value is not None and (text := value.strip()):
            captions.append(text)
    return (captions[0],) if len(captions) == 1 else tuple(dict.fromkeys(captions))
