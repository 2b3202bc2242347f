"""No annotation of texts: documents alone, which a language model reads."""

from collections.abc import Mapping

from vitkit.data.annotations.annotation import Annotation, Members, Parsed
from vitkit.data.order import split_folds
from vitkit.data.sources.sample_list import Columns, Listing, TableListing
from vitkit.data.sources.source import Source
from vitkit.data.sources.text_documents import TEXT_FOLDER, TEXT_SUFFIXES, TextListing
from vitkit.support.errors import format_few


class Documents(Annotation[Source]):
    """Whole texts. The content of a sample is its text in UTF-8; it has no label. A split divides whole texts."""

    columns = ("text", None)
    folder = TEXT_FOLDER
    members = "nothing else"
    sample, suffixes = "text", TEXT_SUFFIXES

    def prepare(self, listing: Listing) -> Listing:
        """Take the cells of a table's column as texts, not as the paths of files."""
        if not isinstance(listing, TableListing):
            return listing
        return TextListing(
            title=listing.title,
            places=listing.places,
            annotations=listing.annotations,
            problems=listing.problems,
            empty=listing.empty,
            omissions=listing.omissions,
            texts=listing.names,
        )

    def parse(self, listing: Listing) -> Parsed[Source]:
        problems: list[str] = []
        texts = listing.texts if isinstance(listing, TextListing) else []
        cells = enumerate(texts)
        if odd := [f"{listing.places[row]} ({cell!s:.40})" for row, cell in cells if not isinstance(cell, str | None)]:
            problems.append(f"every row must hold a text, got others in {format_few(odd)}")
        return Parsed(range(len(listing.places)), problems, lambda source: source)

    def split(self, target: Source, folds: int, fold: int) -> tuple[list[int], list[int]]:
        if len(target) < 2:
            raise ValueError(f"source must hold two texts, one of them to hold out, got {len(target)}; give val")
        return split_folds(target.labels, (), folds, fold)

    def choose_columns(self, columns: Columns) -> Columns:
        """Return the column of the texts. Raises: ValueError for several."""
        if len(columns) != len(self.columns) and len(columns) != 1:
            raise ValueError(f"columns must be one, of the text, got columns={list(columns)}")
        return columns[0], None

    def find_columns(self, features: Mapping[str, object], column: str) -> list[str]:
        return []

    def read_members(self, content: Members, column: str) -> object:
        return None


DOCUMENTS = Documents()
