"""The interface of a vocabulary, and texts put together from its ids."""

from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from vitkit.support.errors import format_few

LARGEST_ID = 2**22
END = "<|end|>"  # the id behind each text, of vocabularies that are made here


def is_number(number: object) -> bool:
    """Return whether a value is an id of a size that vocabularies have."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < LARGEST_ID


class Margin(Enum):
    """The space that a vocabulary adds to every text, which decoding takes away again."""

    NONE = "none"
    FRONT = "front"  # words begin with their space: SentencePiece, WordPiece
    BACK = "back"  # words end with it: CLIP


class VocabularyOptions(NamedTuple):
    """Options of reading a file that it does not say, or says otherwise.

    clean: applied to texts first: whitespace, lower, canonicalize, or nothing.
    pad: the id behind a text; by itself the file's padding, else its <pad>, else its end.
    begin, end: the token, by name or id, in front of and behind each text; by itself what the file puts there.
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
    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, with nothing around them."""

    @abstractmethod
    def holds(self, name: str) -> bool:
        """Return whether a token or a special id has this name."""

    @abstractmethod
    def spell(self, number: int) -> bytes:
        """Return the UTF-8 bytes of an id below `size`, as within a text; none for a special id.

        A byte that is no character by itself is that byte. The id of unknown characters is spelled U+FFFD.
        Raises: ValueError for a number that the vocabulary skips.
        """


class ExtendedVocabulary(Vocabulary):
    """A vocabulary with further special ids behind its own."""

    def __init__(self, vocabulary: Vocabulary, names: Sequence[str]) -> None:
        check_names(names)
        if known := [name for name in names if vocabulary.holds(name)]:
            raise ValueError(f"special must hold names that are new to the vocabulary, got {', '.join(sorted(known))}")
        self.vocabulary = vocabulary
        self.further = {name: vocabulary.size + place for place, name in enumerate(names)}
        self.special = {**vocabulary.special, **self.further}
        self.size = vocabulary.size + len(self.further)
        self.begin, self.finish, self.pad = vocabulary.begin, vocabulary.finish, vocabulary.pad

    @property
    def margin(self) -> Margin:
        return self.vocabulary.margin

    def ids(self, text: str) -> list[int]:
        return self.vocabulary.ids(text)

    def holds(self, name: str) -> bool:
        return name in self.further or self.vocabulary.holds(name)

    def spell(self, number: int) -> bytes:
        return self.vocabulary.spell(number) if number < self.vocabulary.size else b""


def check_names(names: Sequence[str]) -> None:
    """Raises: ValueError for names of special ids that are equal, or of one character, which texts are made of."""
    if len({*names}) < len(names) or any(len(name) < 2 for name in names):
        raise ValueError(f"special must hold different names of several characters, got {format_few(map(repr, names))}")


def spell_pieces(vocabulary: Vocabulary, ids: Iterable[int]) -> Iterator[str]:
    """Yield the text of ids while they come in, without what a later id may still change.

    Held back are the bytes of a character that is not whole yet, and a space that is not part of the text if nothing
    follows it. Bytes that are no UTF-8 become U+FFFD, as `bytes.decode(errors="replace")` has them.

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
    """Return an id as a reader sees it by itself: its text without the space around it, or its name."""
    spelling = vocabulary.spell(number).decode("utf-8", "replace")
    names = (name for name, special in vocabulary.special.items() if special == number)
    return spelling.strip() or next(names, spelling)
