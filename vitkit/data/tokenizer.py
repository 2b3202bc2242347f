"""From texts to the ids that a model takes, and back. B texts, T ids.

A tokenizer is a vocabulary of one of the kinds in `vocabularies`, and the layout of its ids for a model.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Int64
from torch import Tensor

from vitkit.data.vocabularies.vocabulary import (
    ExtendedVocabulary,
    Vocabulary,
    VocabularyOptions,
    check_names,
    is_number,
    spell_pieces,
)
from vitkit.support.errors import InputWarning, format_count, format_few

CLIP, BYTES = "clip", "bytes"
MOST_IDS = 2**20  # of a text; more would only be a mistake, or a stranger's
TEXT, FILE, PIECES, NUMBERS = "text.json", "tokenizer.json", "spiece.model", "vocab.json"  # files of a model folder
POLICIES = ("warn", "error", "truncate")
CLEANS = ("whitespace", "lower", "canonicalize")  # of open_clip's tokenizers, before a tokenizer.json is applied
WORD, UNKNOWN = re.compile(r"(?:[^\W\d_]|[^\x00-\x7f])+"), "\ufffd".encode()
LONE = re.compile("[\ud800-\udfff]")
KINDS: Mapping[str, str] = {".json": FILE, ".model": PIECES, ".spm": PIECES, ".txt": FILE}  # by the suffix of a file
# The options of each kind of vocabulary.
OPTIONS: Mapping[str, Sequence[str]] = {
    CLIP: ("special",),
    BYTES: ("special",),
    "a number": ("special",),
    ".json": ("clean", "pad", "begin", "end", "special"),
    ".model": ("pad", "begin", "end", "numbers", "special"),
    ".spm": ("pad", "begin", "end", "numbers", "special"),
    ".txt": ("cased", "special"),
    "a folder": (),
}


class TokenBatch(NamedTuple):
    """The ids of texts, padded, and the rows of those that were cut."""

    ids: Int64[Tensor, "B T"]
    cut: tuple[int, ...]


@final
class Tokenizer:
    """Texts -> ids, padded to the longest text, or to the context if `whole`; and ids -> texts.

    A lone surrogate, which is half of a character, is read as U+FFFD.

    Args:
        context: the most ids of a text, begin and end included.
        whole: True if the model reads the padding, which then has to be as in training (SigLIP).
        vocabulary: one of

            - "clip": CLIP's byte pairs;
            - "bytes": the 256 bytes and `<|end|>`;
            - a number: at most so many ids of byte pairs, which `train` learns from the texts of a data set;
            - a tokenizer.json of Hugging Face's library `tokenizers`;
            - a SentencePiece .model or .spm;
            - BERT's vocab.txt;
            - a model folder: its vocabulary and options.
        overflow: for a text that does not fit: "warn" and cut it, "error", or "truncate" without a warning.
        clean: cleaning that a tokenizer.json does not do: "whitespace" (mends encodings and HTML, joins white space),
            "lower" (that, in lower case), "canonicalize" (that, without punctuation), or nothing.
        pad: the id behind a text; by default the padding of the file, else its <pad>, else its end.
        begin, end: the token in front of and behind each text, by name or id, if a file has another or none:
            GPT-2's puts nothing behind a text, Llama's only `<s>` in front.
        cased: keep upper case and accents that a vocab.txt has.
        numbers: a JSON file with the ids of a SentencePiece model's pieces (Marian's vocab.json).
        special: names of further ids that no text can spell, behind those of the vocabulary.
    """

    def __init__(
        self,
        context: int = 77,
        *,
        whole: bool = False,
        vocabulary: int | str | Path = CLIP,
        overflow: str = "warn",
        clean: str | None = None,
        pad: int | None = None,
        begin: str | int | None = None,
        end: str | int | None = None,
        cased: bool = False,
        numbers: str | Path | None = None,
        special: Sequence[str] = (),
    ) -> None:
        if context < 3:
            raise ValueError(f"context must hold a text between its begin and end, at least 3, got context={context}")
        if context > MOST_IDS:
            raise ValueError(f"context must be at most {MOST_IDS:,} ids, got context={context:,}")
        if overflow not in POLICIES:
            raise ValueError(f"overflow must be one of {', '.join(POLICIES)}, got overflow={overflow}")
        if clean not in (None, *CLEANS):
            raise ValueError(f"clean must be left out or one of {', '.join(CLEANS)}, got clean={clean}")
        check_names(special)
        self.context, self.whole, self.name, self.overflow = context, whole, vocabulary, overflow
        self.clean, self.pad, self.begin, self.end = clean, pad, begin, end
        self.numbers, self.special = None if numbers is None else Path(numbers).absolute(), tuple(special)
        self.text: str | None = None  # of a tokenizer.json that is not a file
        kind = find_kind(vocabulary)
        options = {"cased": cased or None, "special": special or None}
        options |= {"clean": clean, "pad": pad, "begin": begin, "end": end, "numbers": numbers}
        if wrong := [name for name, value in options.items() if value is not None and name not in OPTIONS[kind]]:
            values = ", ".join(f"{name}={options[name]}" for name in wrong)
            raise ValueError(f"{', '.join(wrong)} must be left out for a vocabulary of {kind}, got {values}")
        if kind == "a folder":
            self._read_folder(Path(str(vocabulary)))
        elif kind in KINDS:
            self.name = Path(str(vocabulary)).absolute()  # the working directory may change
        if kind == ".txt":
            from vitkit.data.vocabularies.wordpiece import format_wordpieces, read_wordpieces

            self.text = format_wordpieces(read_wordpieces(Path(str(vocabulary))), lower=not cased)

    def _read_folder(self, folder: Path) -> None:
        """Use the vocabulary and the options of a model folder."""
        if (other := Tokenizer.from_folder(folder)) is None:
            raise ValueError(f"vocabulary must be a model folder with {TEXT}, got vocabulary={folder}")
        self.name, self.clean, self.pad = other.name, other.clean, other.pad
        self.begin, self.end, self.numbers, self.special = other.begin, other.end, other.numbers, other.special

    @classmethod
    def from_text(cls, text: str, context: int = 77, *, special: Sequence[str] = (), **options: Any) -> "Tokenizer":
        """Return a tokenizer whose vocabulary is the text of a tokenizer.json. Args: options: of the constructor."""
        tokenizer = cls(context, vocabulary=FILE, special=special, **options)
        tokenizer.name, tokenizer.text = FILE, text
        return tokenizer

    def train(self, texts: Iterable[str]) -> "Tokenizer":
        """Return this tokenizer with a vocabulary trained on these texts if it is a number; otherwise itself.

        The same texts give the same vocabulary, so a resumed run has the one that it began with. Texts of the
        validation set must not be among them.
        """
        if not isinstance(self.name, int) or self.text is not None:
            return self
        from vitkit.data.vocabularies.byte_pair_training import train_byte_pairs

        trained = Tokenizer(self.context, whole=self.whole, vocabulary=self.name, overflow=self.overflow)
        trained.text = train_byte_pairs(map(replace_surrogates, texts), self.name, self.special)
        return trained

    @property
    def vocabulary(self) -> Vocabulary:
        # Not an attribute: objects of the libraries cannot be sent to the processes that load data.
        vocabulary = self._open()
        return ExtendedVocabulary(vocabulary, self.special) if self.special else vocabulary

    def _open(self) -> Vocabulary:
        """Open the vocabulary, with imports for its kind only."""
        options = VocabularyOptions(self.clean, self.pad, self.begin, self.end)
        match self.kind:
            case "clip":
                from vitkit.data.vocabularies.clip_byte_pairs import load_clip_vocabulary

                return load_clip_vocabulary()
            case "bytes":
                from vitkit.data.vocabularies.raw_bytes import RawBytes

                return RawBytes()
            case "tokenizer.json":
                from vitkit.data.vocabularies.tokenizer_json import open_tokenizer_json, parse_vocabulary

                if self.text is not None:
                    return parse_vocabulary(self.text, f"vocabulary {self.name}", options)
                return open_tokenizer_json(Path(str(self.name)), options)
            case "spiece.model":
                from vitkit.data.vocabularies.sentencepiece_model import open_sentencepiece

                return open_sentencepiece(Path(str(self.name)), self.numbers, options)
        raise ValueError(f"vocabulary must be trained before texts are read, got vocabulary={self.name}")

    @property
    def kind(self) -> str:
        """The name of the vocabulary in text.json: clip, bytes, or the name of its file."""
        if self.text is not None:
            return FILE
        kind = find_kind(self.name)
        return KINDS.get(kind, kind)

    def __call__(self, texts: str | Sequence[str]) -> Int64[Tensor, "B T"]:
        """Return the ids of texts, padded.

        Raises: ValueError for anything but texts; and with overflow="error" for texts that do not fit.
        """
        texts = [texts] if isinstance(texts, str) else texts
        ids, cut = self.encode_and_pad(texts)
        self.check_cut(texts, cut)
        return ids

    def check_cut(self, texts: Sequence[str], cut: Sequence[int]) -> None:
        """Warn about texts that were cut, or raise, depending on `overflow`. Args: cut: the indices of these texts."""
        if not cut or self.overflow == "truncate":
            return
        first = f"{texts[cut[0]]!r:.80}"
        summary = f"{len(cut)} of {len(texts)} texts do not fit into {self.context} ids, the first: {first}"
        if self.overflow == "error":
            raise ValueError(f"texts must fit, got {summary}; shorten them, or take overflow=truncate")
        warnings.warn(f"{summary}; their ends are cut off", InputWarning, stacklevel=3)

    def check_words(self, texts: Sequence[str]) -> None:
        """Warn about words of texts that the vocabulary knows only as bytes or as unknown."""
        if words := self.find_unknown_words(texts):
            warnings.warn(
                f"the model's vocabulary knows {format_few(map(repr, words))} only as bytes or as unknown: "
                "scores mean little",
                InputWarning,
                stacklevel=3,
            )

    def find_unknown_words(self, texts: Sequence[str]) -> list[str]:
        """Return the words whose ids are bytes or unknown tokens alone; none if all ids of the vocabulary are bytes."""
        if self.kind == BYTES:
            return []
        vocabulary = self.vocabulary
        words = dict.fromkeys(word for text in texts for word in WORD.findall(replace_surrogates(text)))

        def is_unknown(text: str) -> bool:
            pieces = [vocabulary.spell(number).strip() for number in vocabulary.encode(text)]
            return all(len(piece) <= 1 or piece == UNKNOWN for piece in pieces)

        # Within a text another word may stand before it: some vocabularies have " red" and not "red".
        return [word for word in words if len(word.encode()) > 2 and is_unknown(word) and is_unknown(f" {word}")]

    def encode_and_pad(self, texts: Sequence[str]) -> TokenBatch:
        """Return the padded ids of texts, and the indices of the texts that were cut, whatever `overflow` is."""
        rows, cut = self.encode_and_cut(texts)
        return TokenBatch(self.pad_rows(rows), cut)

    def encode_and_cut(self, texts: Sequence[str]) -> tuple[list[list[int]], tuple[int, ...]]:
        """Return the ids of each text, cut to the context but not padded, and the indices of the cut texts."""
        vocabulary = self.vocabulary
        rows = [[*vocabulary.begin, *ids, *vocabulary.finish] for ids in self.encode(texts)]
        cut = tuple(row for row, ids in enumerate(rows) if len(ids) > self.context)
        end = vocabulary.end
        return [ids if len(ids) <= self.context else [*ids[: self.context - 1], end] for ids in rows], cut

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text without begin and end tokens, neither cut nor padded.

        Prompts, streams and segments are made of these.
        """
        if isinstance(texts, str):  # else each of its letters would be a text
            raise ValueError(f"texts must be a list, got one text: {texts!r:.80}")
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise ValueError(f"texts must be strings, got {wrong[0]!r:.80}")
        vocabulary = self.vocabulary
        return [vocabulary.encode(replace_surrogates(text)) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. Special ids, such as those around a text and its padding, are left out.

        A vocabulary of bytes returns any text exactly. The others return the text as they read it: CLIP's in lower
        case and with a space between words, WordPiece with a space around signs; a character that a vocabulary lacks
        is U+FFFD. So are bytes that are no UTF-8, which a model may generate.

        Raises: ValueError for an id that is not in the vocabulary.
        """
        return "".join(self.decode_pieces(ids))

    def decode_pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of ids as they arrive; joined, the pieces are the text of `decode`.

        The end that a later id may still change comes later: the bytes of an incomplete character, and a space that
        is not part of the text if nothing follows.
        """
        return spell_pieces(self.vocabulary, map(int, ids))

    def pad_rows(self, rows: Sequence[Sequence[int]]) -> Int64[Tensor, "B T"]:
        """Return rows of ids as one tensor, padded to the longest of them, or to the context if `whole`."""
        longest = self.context if self.whole else max(map(len, rows), default=1)  # a pool looks for the end among some
        ids = torch.full((len(rows), longest), self.vocabulary.pad, dtype=torch.int64)
        for padded_row, row in zip(ids, rows, strict=True):
            padded_row[: len(row)] = torch.tensor(row)
        return ids

    def to_dict(self) -> dict[str, Any]:
        """Return the content of text.json, beside which the file of a vocabulary is saved."""
        if self.kind not in (CLIP, BYTES, FILE, PIECES):
            raise ValueError(f"vocabulary must be trained before it is written, got vocabulary={self.name}")
        content: dict[str, Any] = {"vocabulary": self.kind, "context": self.context, "whole": self.whole}
        if self.kind == FILE:
            content |= {"clean": self.clean, "pad": self.pad}
        numbers = None if self.numbers is None else NUMBERS
        further = {"pad": self.pad, "begin": self.begin, "end": self.end, "numbers": numbers}
        further |= {"special": [*self.special] or None}
        return content | {name: value for name, value in further.items() if value is not None}

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer | None":
        """Return the tokenizer of a model folder, None where it has none. Raises: ValueError."""
        if not (path := folder / TEXT).is_file():
            return None
        content = json.loads(path.read_text("utf-8"))
        if not isinstance(content, dict) or not _has_fields(content):
            kinds = ", ".join((CLIP, BYTES, FILE, PIECES))
            rule = f"must hold vocabulary ({kinds}), context and whole, and with {FILE} clean and pad"
            raise ValueError(f"{rule}, got {content!r:.160}")
        kind, options = content.pop("vocabulary"), content
        if kind in (FILE, PIECES):
            options["vocabulary"] = folder / kind
        if "numbers" in options:
            options["numbers"] = folder / NUMBERS
        return cls(**{"vocabulary": kind, **options})


# Fields of text.json, and checks of their values.
FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "vocabulary": lambda value: value in (CLIP, BYTES, FILE, PIECES),
    "context": is_number,
    "whole": lambda value: isinstance(value, bool),
    "clean": lambda value: value is None or isinstance(value, str),
    "pad": lambda value: value is None or is_number(value),
    "begin": lambda value: isinstance(value, str) or is_number(value),
    "end": lambda value: isinstance(value, str) or is_number(value),
    "numbers": lambda value: value == NUMBERS,
    "special": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
}


def _has_fields(content: Mapping[str, Any]) -> bool:
    """Return whether text.json has the fields of its kind of vocabulary, and no other."""
    if not all(name in FIELDS and FIELDS[name](value) for name, value in content.items()):
        return False
    kind = content.get("vocabulary", "")
    required = {"vocabulary", "context", "whole", *(("clean", "pad") if kind == FILE else ())}
    return required <= content.keys() <= required | {*OPTIONS.get(Path(kind).suffix or kind, ())}


def find_kind(vocabulary: int | str | Path) -> str:
    """Return the kind of a vocabulary, a key of OPTIONS. Raises: ValueError."""
    if isinstance(vocabulary, int):
        return "a number"
    if vocabulary in (CLIP, BYTES):
        return str(vocabulary)
    if (path := Path(vocabulary)).is_dir():
        return "a folder"
    if path.suffix in KINDS:
        return path.suffix
    rule = f"{CLIP}, {BYTES}, a number, a model folder, or a file: tokenizer.json, .model, .spm or vocab.txt"
    raise ValueError(f"vocabulary must be {rule}, got vocabulary={vocabulary}")


def find_misfits(vocabulary: Vocabulary, size: int, end: int | None) -> list[str]:
    """Return a message for each reason why a text tower does not fit a vocabulary.

    Args: size: the number of ids that the tower embeds. end: the id that its pool looks for, if any.
    """
    rules = {
        f"the text tower's pool must look for the end of the vocabulary, end={vocabulary.end} and not {end}": (
            end is None or end == vocabulary.end
        ),
        f"the text tower's vocabulary must hold all {format_count(vocabulary.size, 'ids')}, and holds {size:,}": (
            vocabulary.size <= size
        ),
    }
    return [rule for rule, holds in rules.items() if not holds]


def replace_surrogates(text: str) -> str:
    return LONE.sub("\ufffd", text)


def format_tokenizer(tokenizer: Tokenizer) -> Mapping[str, str]:
    """Return the texts that identify a tokenizer: text.json, and the vocabulary's file or its digest."""
    files = {name: content for name, content in read_tokenizer_files(tokenizer).items() if name != PIECES}
    texts = {name: content.decode("utf-8") for name, content in files.items()}
    if tokenizer.kind == PIECES:
        texts[PIECES] = hashlib.blake2b(Path(str(tokenizer.name)).read_bytes(), digest_size=16).hexdigest()
    return texts


def read_tokenizer_files(tokenizer: Tokenizer) -> Mapping[str, bytes]:
    """Return the contents of the files in a model folder that hold a tokenizer: text.json, and its vocabulary's."""
    files = {TEXT: (json.dumps(tokenizer.to_dict(), indent=2) + "\n").encode()}
    if tokenizer.text is not None:
        files[FILE] = tokenizer.text.encode()
    elif tokenizer.kind in (FILE, PIECES):
        files[tokenizer.kind] = Path(str(tokenizer.name)).read_bytes()
    if tokenizer.numbers is not None:
        files[NUMBERS] = tokenizer.numbers.read_bytes()
    return files
