"""No annotation: images alone."""

from collections.abc import Mapping

from vitkit.data.annotations.annotation import Annotation, Members, Parsed
from vitkit.data.order import split_folds
from vitkit.data.sources.image_files import LOOSE
from vitkit.data.sources.sample_list import Columns, Listing
from vitkit.data.sources.source import COLUMNS, Source


class Unlabelled(Annotation[Source]):
    """Images whose annotations are not read; labels are -1 and there are no classes."""

    columns = (COLUMNS[0], None)
    folder = LOOSE
    members = "nothing else"

    def parse(self, listing: Listing) -> Parsed[Source]:
        first = {listing.get_key(row): row for row in reversed(range(len(listing.places)))}
        rows = sorted(first.values())
        again = [listing.places[row] for row in sorted({*range(len(listing.places))} - {*rows})]
        listing.omissions.add("rows of pictures listed already", again)
        return Parsed(rows, [], remove_labels)

    def split(self, target: Source, folds: int, fold: int) -> tuple[list[int], list[int]]:
        training, validation = split_folds(target.labels, target.class_names, folds, fold)
        if len(validation) < 2:  # too few to hold some out: an MAE compares validation pictures with each other
            training = validation = list(range(len(target)))
        return training, validation

    def choose_columns(self, columns: Columns) -> Columns:
        return columns[0], None

    def find_columns(self, features: Mapping[str, object], column: str) -> list[str]:
        return []

    def read_members(self, content: Members, column: str) -> object:
        return None


def remove_labels(source: Source) -> Source:
    source.class_names, source.labels = (), [-1] * len(source)
    return source


UNLABELLED = Unlabelled()
