"""Labels: class names and indices from raw annotations, for every kind of source."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vitkit.data.annotations.annotation import Annotation, Members, Parsed
from vitkit.data.annotations.raw_text import decode_json, decode_text
from vitkit.data.order import split_folds
from vitkit.data.sources.class_folders import CLASS_FOLDERS
from vitkit.data.sources.sample_list import Columns, Listing
from vitkit.data.sources.source import COLUMNS, Source, order_names
from vitkit.support.errors import format_few
from vitkit.support.names import escape_name, number_duplicates


class Labels(Annotation[Source]):
    """One class for each image, or a set of classes for each. A split divides every class evenly.

    Args: partial: classes may have no images, as in a validation set.
    """

    columns = COLUMNS
    folder = CLASS_FOLDERS
    members = ".cls, .json or .txt"

    def __init__(self, partial: bool = False) -> None:
        self.partial = partial

    def parse(self, listing: Listing) -> Parsed[Source]:
        cells = listing.annotations
        if listing.delimited and not listing.class_names and any("|" in str(cell) for cell in cells):
            cells = [str(cell).split("|") for cell in cells]
        fewest = 1 if self.partial else 2
        class_names, labels, problems = parse_labels(cells, listing.places, listing.class_names, fewest)
        if not self.partial:
            problems += listing.class_problems

        def attach(source: Source) -> Source:
            source.class_names, source.labels = class_names, labels
            return source

        return Parsed(range(len(cells)), problems, attach)

    def split(self, target: Source, folds: int, fold: int) -> tuple[list[int], list[int]]:
        return split_folds(target.labels, target.class_names, folds, fold)

    def choose_columns(self, columns: Columns) -> Columns:
        """Return the columns: of the picture and its label, or of the picture and each class."""
        return columns if len(columns) > 2 else super().choose_columns(columns)

    def find_columns(self, features: Mapping[str, object], column: str) -> list[str]:
        import datasets

        return [
            name for name, feature in features.items() if isinstance(get_item_feature(feature), datasets.ClassLabel)
        ]

    def read_members(self, content: Members, column: str) -> object:
        """Return the text of a member `column`, else its value in a .json; by default also the text of .cls or .txt."""
        default = column == COLUMNS[1]
        for extension in (column.lower(), "cls", "json", "txt") if default else (column.lower(), "json"):
            if (member := content(extension)) is not None:
                value = decode_json(member) if extension.endswith("json") else decode_text(member)
                key = COLUMNS[1] if extension == column.lower() else column
                return value.get(key) if isinstance(value, dict) else value
        return None


LABELS, LABELS_OF_SOME = Labels(), Labels(partial=True)


def get_item_feature(feature: object) -> object:
    """Return the feature of a `datasets` list's items; another feature itself."""
    return getattr(feature, "feature", feature)


class ParsedLabels(NamedTuple):
    """Class names, the indices of each sample's labels, and the problems of the cells."""

    class_names: tuple[str, ...]
    labels: list[int] | list[tuple[int, ...]]
    problems: list[str]


def parse_labels(
    cells: Sequence[object], places: Sequence[object], names: Sequence[str] = (), fewest: int = 2
) -> ParsedLabels:
    """Parse labels to indices. A list among the cells makes every sample's label a set; an empty cell is an empty set.

    Args: cells: text or an integer each, or a list of them. places: the name of each sample in messages.
        names: of the classes, if the labels are indices; -1 is then an empty cell.
        fewest: the least number of classes; 1 for sets of labels.
    """
    multilabel = any(isinstance(cell, list | tuple) for cell in cells)
    sets = [_parse_cell(cell, bool(names)) for cell in cells]
    problems = []
    if invalid := [f"{place} ({row:.40})" for place, row in zip(places, sets, strict=True) if isinstance(row, str)]:
        problems.append(f"labels must be text or integers, or lists of them, got others in {format_few(invalid)}")
    rows: list[tuple[str, ...]] = [() if isinstance(row, str) else row for row in sets]
    if not multilabel and (empty := [place for place, row in zip(places, sets, strict=True) if not row]):
        problems.append(f"every picture must have a label, got none in {format_few(empty)}")
    if names:
        names = number_duplicates([*map(escape_name, names)])
        known = {str(index): index for index in range(len(names))}
        if out_of_range := [place for place, row in zip(places, rows, strict=True) if not known.keys() >= set(row)]:
            problems.append(f"labels must be indices below {len(names)}, got others in {format_few(out_of_range)}")
    else:
        names = order_names({text for row in rows for text in row})
        distinct = number_duplicates(names)
        if repeated := [name for name, new in zip(names, distinct, strict=True) if name != new]:
            rule = "names of classes must differ in more than white space and Unicode form"
            problems.append(f"{rule}, got {format_few(repeated)} in two spellings")
        known = {name: index for index, name in enumerate(names)}
        if cells and len(names) < (1 if multilabel else fewest) and not problems:
            problems.append(f"labels must be of at least two classes, got {format_few(names)}")
    if problems:
        return ParsedLabels((), [], problems)
    if multilabel:
        return ParsedLabels(tuple(names), [tuple(sorted({known[text] for text in row})) for row in rows], [])
    return ParsedLabels(tuple(names), [known[row[0]] for row in rows], [])


def _parse_cell(cell: object, indices: bool) -> tuple[str, ...] | str:
    """Return the labels in a cell as text, or the text of an error for a cell that holds anything else."""
    labels = []
    for value in cell if isinstance(cell, list | tuple) else (cell,):
        if not (value is None or isinstance(value, str | int)):
            return str(value)
        text = "" if value is None or (indices and value == -1) else escape_name(str(value).strip())
        labels += [text] if text else []
    return tuple(labels)
