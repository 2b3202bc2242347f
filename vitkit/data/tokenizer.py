"""Texts as the ids that a text tower reads. B texts, T ids."""

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor

CLIP = "clip"  # its byte pairs, which open_clip ships
POLICIES = ("warn", "error", "truncate")
CLEANS = ("whitespace", "lower", "canonicalize")  # of open_clip's tokenizers, before a tokenizer.json is asked
# CLIP's pattern (https://arxiv.org/abs/2103.00020, code) without its special tokens: nobody's text may hold those.
# A word ends after 1,000 letters, far behind any context: the time that pairing takes grows with their square.
WORD = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]{1,1000}|[\p{N}]|[^\s\p{L}\p{N}]{1,1000}"


@runtime_checkable
class Vocabulary(Protocol):
    """What makes ids below `size` of texts; `end` is the last of each, `pad` what may follow it."""

    size: int
    end: int
    pad: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """With the ids that begin and end a text; no text can spell those."""
        ...


class Fitted(NamedTuple):
    """Ids, and which of the texts were cut."""

    ids: Int64[Tensor, "B T"]
    cut: tuple[int, ...]


class Tokenizer:
    """Texts -> ids, padded to the longest of them, or where `whole` to the context.

    Args:
        context: ids at most, those that begin and end a text among them.
        whole: whether the model reads the padding, so that it has to be as in training (SigLIP).
        vocabulary: "clip", or a tokenizer.json of Hugging Face's library `tokenizers`.
        overflow: of a text that does not fit: "warn" and cut it, "error", or "truncate" and say nothing.
        clean: what a tokenizer.json leaves to its reader: "whitespace" (mends encodings and HTML, joins white space),
            "lower" (that, in lower case), "canonicalize" (that, without punctuation), or nothing.
        pad: what follows a text; by itself what a tokenizer.json pads with, else its <pad>, else its end.
    """

    def __init__(
        self,
        context: int = 77,
        *,
        whole: bool = False,
        vocabulary: str | Path = CLIP,
        overflow: str = "warn",
        clean: str | None = None,
        pad: int | None = None,
    ) -> None:
        if context < 3:
            raise ValueError(f"context must hold a text between its begin and end, at least 3, got context={context}")
        if overflow not in POLICIES:
            raise ValueError(f"overflow must be one of {', '.join(POLICIES)}, got overflow={overflow}")
        if clean not in (None, *CLEANS):
            raise ValueError(f"clean must be left out or one of {', '.join(CLEANS)}, got clean={clean}")
        if vocabulary == CLIP and (clean, pad) != (None, None):
            raise ValueError(f"clean and pad are for a tokenizer.json, got clean={clean}, pad={pad} for {CLIP}")
        self.context, self.whole, self.name, self.overflow = context, whole, vocabulary, overflow
        self.clean, self.pad = clean, pad

    @property
    def vocabulary(self) -> Vocabulary:
        # Not held: what a library made cannot travel to the processes that load data.
        return byte_pairs() if self.name == CLIP else from_file(Path(self.name), self.clean, self.pad)

    def __call__(self, texts: str | Sequence[str]) -> Int64[Tensor, "B T"]:
        """Raises: ValueError for what is no text; and with the policy "error" for texts that do not fit."""
        texts = [texts] if isinstance(texts, str) else texts
        ids, cut = self.fit(texts)
        self.judge(texts, cut)
        return ids

    def judge(self, texts: Sequence[str], cut: Sequence[int]) -> None:
        """What the policy says to texts of which these do not fit."""
        if not cut or self.overflow == "truncate":
            return
        told = f"{len(cut)} of {len(texts)} texts do not fit into {self.context} ids, the first: {texts[cut[0]]!r:.80}"
        if self.overflow == "error":
            raise ValueError(f"texts must fit, got {told}; shorten them, or take overflow=truncate")
        warnings.warn(f"{told}; their ends are cut off", stacklevel=3)

    def fit(self, texts: Sequence[str]) -> Fitted:
        """Whatever the policy: texts that do not fit lose their ends, and are named."""
        rows, cut = self.rows(texts)
        return Fitted(self.padded(rows), cut)

    def rows(self, texts: Sequence[str]) -> tuple[list[list[int]], tuple[int, ...]]:
        """The ids of each text without padding, and which of the texts were cut."""
        if isinstance(texts, str):  # or else each of its letters would be a text
            raise ValueError(f"texts must be a list, got one text: {texts!r:.80}")
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise ValueError(f"texts must be strings, got {wrong[0]!r:.80}")
        rows, end = self.vocabulary.encode(texts), self.vocabulary.end
        cut = tuple(row for row, ids in enumerate(rows) if len(ids) > self.context)
        return [ids if len(ids) <= self.context else [*ids[: self.context - 1], end] for ids in rows], cut

    def padded(self, rows: Sequence[Sequence[int]]) -> Int64[Tensor, "B T"]:
        longest = self.context if self.whole else max(map(len, rows), default=1)  # a pool looks for the end among some
        padded = torch.full((len(rows), longest), self.vocabulary.pad, dtype=torch.int64)
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return padded

    def to_dict(self) -> dict[str, Any]:
        """What text.json holds. A vocabulary of its own lies beside as tokenizer.json."""
        held = {"vocabulary": CLIP if self.name == CLIP else FILE, "context": self.context, "whole": self.whole}
        return held if self.name == CLIP else held | {"clean": self.clean, "pad": self.pad}

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a model folder, if it has one. Raises: ValueError."""
        if not (path := folder / TEXT).is_file():
            return None
        match held := json.loads(path.read_text("utf-8")):
            case {"vocabulary": "clip", "context": int(context), "whole": bool(whole), **rest} if not rest:
                return cls(context, whole=whole)
            case {
                "vocabulary": "tokenizer.json",
                "context": int(context),
                "whole": bool(whole),
                "clean": None | str() as clean,
                "pad": None | int() as pad,
                **rest,
            } if not rest:
                return cls(context, whole=whole, vocabulary=folder / FILE, clean=clean, pad=pad)
        rule = f"must hold vocabulary ({CLIP} or {FILE}), context and whole, and with {FILE} clean and pad"
        raise ValueError(f"{rule}, got {held!r:.160}")


TEXT, FILE = "text.json", "tokenizer.json"


class BytePairs:
    """CLIP's 49,408: texts in lower case, HTML unescaped, white space joined."""

    def __init__(self) -> None:
        import regex
        from open_clip.tokenizer import SimpleTokenizer

        self.pairs = SimpleTokenizer()
        # It would read "<end_of_text>" in a text as the end of it.
        self.pairs.pat = regex.compile(WORD, regex.IGNORECASE)
        self.pairs.cache.clear()
        self.start, self.end, self.pad = self.pairs.sot_token_id, self.pairs.eot_token_id, 0
        self.size = self.pairs.vocab_size

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.start, *self.pairs.encode(text), self.end] for text in texts]


@cache
def byte_pairs() -> Vocabulary:
    return BytePairs()


class OfFile:
    """A tokenizer.json of Hugging Face's library `tokenizers`. Raises: ValueError for what is none."""

    def __init__(self, path: Path, clean: str | None, pad: int | None) -> None:
        if find_spec("tokenizers") is None:
            raise ValueError(f'{path} must be read by tokenizers, which is missing; pip install "vitkit[tokenizers]"')
        import tokenizers
        from open_clip.tokenizer import get_clean_fn

        try:
            self.file = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # of Rust, of a plain Exception's class
            raise ValueError(f"{path} must be a tokenizer.json of tokenizers: {str(error):.200}") from None
        held = json.loads(path.read_text("utf-8"))
        padding = self.file.padding or {"pad_id": self.file.token_to_id("<pad>")}
        # Cutting and padding are Tokenizer's; and "</s>" in a text are four letters.
        self.file.no_truncation()
        self.file.no_padding()
        self.file.encode_special_tokens = True
        self.clean = get_clean_fn(clean) if clean else str
        self.start, self.finish = self.around(path)
        self.size, self.end = self.file.get_vocab_size(), self.finish[-1]
        self.pad = next(known for known in (pad, padding["pad_id"], self.end) if known is not None)
        unknown = held["model"].get("unk_id", self.file.token_to_id(held["model"].get("unk_token") or ""))
        special = {number for number, token in self.file.get_added_tokens_decoder().items() if token.special}
        self.special = {*self.start, *self.finish, *(special - {unknown})}

    def around(self, path: Path) -> tuple[list[int], list[int]]:
        """What is put before and after each text. Raises: ValueError where nothing follows it."""
        bare, whole = (self.file.encode("a", add_special_tokens=added).ids for added in (False, True))
        for begin in range(len(whole) - len(bare) if bare else 0):
            if whole[begin : begin + len(bare)] == bare:
                return whole[:begin], whole[begin + len(bare) :]
        raise ValueError(f"{path} must put an id after each text, got {whole} for a")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """One after the other: the library's threads and the processes that load data do not go together."""
        return [[*self.start, *self.words(text), *self.finish] for text in texts]

    def words(self, text: str) -> list[int]:
        """Some vocabularies hold "</s>" among the words: it is left out."""
        ids = self.file.encode(self.clean(text), add_special_tokens=False).ids
        return [number for number in ids if number not in self.special]


@cache
def from_file(path: Path, clean: str | None = None, pad: int | None = None) -> Vocabulary:
    return OfFile(path, clean, pad)


def format_tokenizer(tokenizer: Tokenizer) -> Mapping[str, str]:
    """The texts of text.json and, with a vocabulary of its own, tokenizer.json."""
    held = {TEXT: json.dumps(tokenizer.to_dict(), indent=2) + "\n"}
    return held if tokenizer.name == CLIP else held | {FILE: Path(tokenizer.name).read_text("utf-8")}
