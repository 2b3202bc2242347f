"""The interface of a vocabulary, and the decoding of its ids to text."""

from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from vitkit.support.errors import format_few

LARGEST_ID = 2**22
END = "<|end|>"  # the id behind each text, in vocabularies trained here


def is_number(number: object) -> bool:
    """Return whether a value is an id below LARGEST_ID."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < LARGEST_ID


class Margin(Enum):
    """The space that a vocabulary adds to every text and decoding removes."""

    NONE = "none"
    FRONT = "front"  # words begin with their space: SentencePiece, WordPiece
    BACK = "back"  # words end with it: CLIP


class VocabularyOptions(NamedTuple):
    """Options for reading a file, which replace what it says.

    clean: applied to texts first: whitespace, lower, canonicalize, or nothing.
    pad: the id behind a text; by default the file's padding, else its <pad>, else its end.
    begin, end: the token, by name or id, in front of and behind each text; by default the file's.
    """

    clean: str | None = None
    pad: int | None = None
    begin: str | int | None = None
    end: str | int | None = None


class Vocabulary(ABC):
    """Ids below `size`, each with its spelling.

    begin: ids in front of each text.
    finish: ids behind it; the last is `end`.
    pad: the id that may follow a text.
    special: ids that no text can spell, under their names. Decoding leaves them out.
    """

    size: int
    begin: tuple[int, ...]
    finish: tuple[int, ...]
    pad: int
    special: Mapping[str, int]

    @property
    def end(self) -> int:
        return self.finish[-1]

    @property
    @abstractmethod
    def margin(self) -> Margin: ...

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without begin and end."""

    @abstractmethod
    def has_name(self, name: str) -> bool:
        """Return whether a token or a special id has this name."""

    @abstractmethod
    def spell(self, number: int) -> bytes:
        """Return the UTF-8 bytes of an id below `size` within a text; none for a special id.

        The id of a byte is spelled as that byte. The id of unknown characters is spelled U+FFFD.
        Raises: ValueError for a number that the vocabulary skips.
        """


class ExtendedVocabulary(Vocabulary):
    """A vocabulary with further special ids behind its own."""

    def __init__(self, vocabulary: Vocabulary, names: Sequence[str]) -> None:
        check_names(names)
        if known := [name for name in names if vocabulary.has_name(name)]:
            raise ValueError(f"special must hold names that are new to the vocabulary, got {', '.join(sorted(known))}")
        self.vocabulary = vocabulary
        self.further = {name: vocabulary.size + place for place, name in enumerate(names)}
        self.special = {**vocabulary.special, **self.further}
        self.size = vocabulary.size + len(self.further)
        self.begin, self.finish, self.pad = vocabulary.begin, vocabulary.finish, vocabulary.pad

    @property
    def margin(self) -> Margin:
        return self.vocabulary.margin

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.encode(text)

    def has_name(self, name: str) -> bool:
        return name in self.further or self.vocabulary.has_name(name)

    def spell(self, number: int) -> bytes:
        return self.vocabulary.spell(number) if number < self.vocabulary.size else b""


def check_names(names: Sequence[str]) -> None:
    """Check the names of special ids. Raises: ValueError for equal names and for names of one character."""
    if len({*names}) < len(names) or any(len(name) < 2 for name in names):
        raise ValueError(f"special must hold different names of several characters, got {format_few(map(repr, names))}")


def spell_pieces(vocabulary: Vocabulary, ids: Iterable[int]) -> Iterator[str]:
    """Yield the text of ids as they arrive, except for the end that a later id may still change.

    That is the bytes of an incomplete character, and a space that is not part of the text if nothing follows it. Bytes
    that are no UTF-8 become U+FFFD, as in `bytes.decode(errors="replace")`.

    Raises: ValueError for an id that is not in the vocabulary.
    """
    decoder, margin, space = getincrementaldecoder("utf-8")("replace"), vocabulary.margin, ""
    for number in ids:
        if not 0 <= number < vocabulary.size:
            raise ValueError(f"ids must be in [0, {vocabulary.size:,}), got {number}")
        piece = decoder.decode(vocabulary.spell(number))
        if margin is Margin.FRONT and piece:
            piece, margin = piece.removeprefix(" "), Margin.NONE
        if margin is Margin.BACK and piece:
            piece, space = space + piece, ""
            piece, space = (piece[:-1], " ") if piece.endswith(" ") else (piece, "")
        if piece:
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield space + rest


def name_id(vocabulary: Vocabulary, number: int) -> str:
    """Return the text of one id without the space around it, or its name if that is empty."""
    spelling = vocabulary.spell(number).decode("utf-8", "replace")
    names = (name for name, special in vocabulary.special.items() if special == number)
    return spelling.strip() or next(names, spelling)
