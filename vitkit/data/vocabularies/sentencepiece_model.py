"""The vocabulary of a SentencePiece model, such as T5's, Llama's and Marian's. https://arxiv.org/abs/1808.06226"""

import json
import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitkit.data.vocabularies.text_growth import MOST_GROWTH, find_charsmap, measure_charsmap
from vitkit.data.vocabularies.token_spelling import BYTE
from vitkit.data.vocabularies.tokenizer_json import find_id, summarise_errors
from vitkit.data.vocabularies.tokenizer_schema import (
    FileState,
    check_numbers,
    find_state,
    read_bytes,
    read_text,
)
from vitkit.data.vocabularies.vocabulary import Margin, Vocabulary, VocabularyOptions

SPACE = "▁"
CONTROL = re.compile(r"<[^<>]+>|>>[^<>]+<<")  # names in Marian's vocab.json that are no pieces: <pad>, >>fra<<


class SentencePieceModel(Vocabulary):
    """The pieces of a SentencePiece model, unigram or byte pairs.

    No text can spell its control pieces, such as <s> and </s>. Characters that it lacks are spelled by bytes if it has
    them, else lost: their id decodes to U+FFFD.

    Args:
        options: begin, end, pad; by default nothing is put in front of a text, and the model's end behind it.
        numbers: the id of each piece if it is not its place in the model; pieces without one are unknown (Marian).
    Raises: ValueError, one line, for a file that is no model.
    """

    def __init__(
        self, content: bytes, source: str, options: VocabularyOptions, numbers: dict[str, int] | None = None
    ) -> None:
        if find_spec("sentencepiece") is None:
            raise ValueError(
                f'{source} must be read by sentencepiece, which is missing; pip install "vitkit[sentencepiece]"'
            )
        import sentencepiece

        self.source, self.model = source, sentencepiece.SentencePieceProcessor()
        with summarise_errors(f"{source} must be a SentencePiece model"):
            if (growth := measure_charsmap(find_charsmap(content))) > MOST_GROWTH:
                raise ValueError(f"a character must become {MOST_GROWTH} bytes at most, got {growth:,}")
            self.model.LoadFromSerializedProto(content)
            pieces = [self.model.id_to_piece(place) for place in range(self.model.vocab_size())]
            if self.model.normalize("a").endswith(SPACE):
                raise ValueError("it must put spaces in front of words, got them behind")
            kinds = [_spell_piece(self.model, place, piece) for place, piece in enumerate(pieces)]
        self._margin = Margin.FRONT if self.model.normalize("a").startswith(SPACE) else Margin.NONE
        names = {piece: place for place, piece in enumerate(pieces)}
        unknown, pad = pieces[self.model.unk_id()], self.model.pad_id()
        spellings = dict(zip(pieces, kinds, strict=True))
        end = pieces[self.model.eos_id()] if self.model.eos_id() >= 0 else None
        if numbers is not None:
            with summarise_errors(f"{source} must have the numbers of its pieces"):
                check_numbers(numbers)
                self.numbers = [numbers.get(piece, find_id(numbers, unknown, "unknown")) for piece in pieces]
            further = numbers.keys() - names.keys()
            spellings |= {name: b"" if CONTROL.fullmatch(name) else _spell_word(name) for name in further}
            names, pad = numbers, numbers.get("<pad>", -1)
        else:
            self.numbers = None
        self.names, self.size = names, max(names.values()) + 1
        self.spellings = {number: spellings[name] for name, number in names.items()}
        self.special = {name: number for name, number in names.items() if not spellings[name]}
        with summarise_errors(f"{source} must hold the ids around texts"):
            self.begin = () if options.begin is None else (find_id(names, options.begin, "begin"),)
            end = end if options.end is None else options.end
            if end is None:
                raise ValueError("it has no end of a text; name a piece by end")
            self.finish = (find_id(names, end, "end"),)
            self.pad = next(number for number in (options.pad, pad, self.end) if number is not None and number >= 0)
            outside = [number for number in (*self.begin, self.end, self.pad) if not 0 <= number < self.size]
            if outside:
                raise ValueError(f"they must be below {self.size:,}, got {outside[0]}")
            if spelled := [number for number in (*self.begin, self.end) if number not in self.special.values()]:
                raise ValueError(f"they must be control pieces, which no text can spell, got {spelled[0]}")

    @property
    def margin(self) -> Margin:
        return self._margin

    def encode(self, text: str) -> list[int]:
        places = self.model.encode(text)
        return places if self.numbers is None else [self.numbers[place] for place in places]

    def has_name(self, name: str) -> bool:
        return name in self.names

    def spell(self, number: int) -> bytes:
        if number not in self.spellings:
            raise ValueError(f"ids must be of {self.source}, which has no piece for {number}")
        return self.spellings[number]


def _spell_piece(model: Any, place: int, piece: str) -> bytes:
    if model.is_control(place):
        return b""
    if model.is_unknown(place):
        return "\ufffd".encode()
    byte = BYTE.fullmatch(piece) if model.is_byte(place) else None
    return bytes.fromhex(byte[1]) if byte else _spell_word(piece)


def _spell_word(piece: str) -> bytes:
    return piece.replace(SPACE, " ").encode()


def open_sentencepiece(path: Path, numbers: Path | None, options: VocabularyOptions) -> SentencePieceModel:
    """Return the vocabulary of a file, which is read again only if it changes.

    Args: numbers: a JSON file with the id of each piece.
    """
    with summarise_errors(f"{path} must be a SentencePiece model"):
        model = find_state(path)
    if numbers is None:
        return _open_states(model, None, str(path), options)
    with summarise_errors(f"{numbers} must hold the id of each piece"):
        table = find_state(numbers)
    return _open_states(model, table, str(path), options)


@lru_cache(maxsize=8)
def _open_states(
    model: FileState, numbers: FileState | None, source: str, options: VocabularyOptions
) -> SentencePieceModel:
    with summarise_errors(f"{source} must be a SentencePiece model"):
        content = read_bytes(model.path)
    table = None
    if numbers is not None:
        with summarise_errors(f"{numbers.path} must hold the id of each piece"):
            table = json.loads(read_text(numbers.path))
            if not isinstance(table, dict):
                raise ValueError(f"it must hold names and values, got {table!r:.80}")
    return SentencePieceModel(content, source, options, table)
