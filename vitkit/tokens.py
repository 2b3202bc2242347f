"""Texts as the ids that a text tower reads. B texts, T ids."""

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor

CLIP = "clip"  # its byte pairs, which open_clip ships
POLICIES = ("warn", "error", "truncate")
# CLIP's pattern (https://arxiv.org/abs/2103.00020, code) without its special tokens: nobody's text may hold those.
WORD = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@runtime_checkable
class Vocabulary(Protocol):
    """What makes ids of texts; `end` is the last id of each, `pad` what may follow it."""

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
    """

    def __init__(
        self, context: int = 77, *, whole: bool = False, vocabulary: str | Path = CLIP, overflow: str = "warn"
    ) -> None:
        if context < 3:
            raise ValueError(f"context must hold a text between its begin and end, at least 3, got context={context}")
        if overflow not in POLICIES:
            raise ValueError(f"overflow must be one of {', '.join(POLICIES)}, got overflow={overflow}")
        self.context, self.whole, self.name, self.overflow = context, whole, vocabulary, overflow

    @property
    def vocabulary(self) -> Vocabulary:
        return byte_pairs() if self.name == CLIP else from_file(Path(self.name))

    def __call__(self, texts: str | Sequence[str]) -> Int64[Tensor, "B T"]:
        """Raises: ValueError for what is no text; and with the policy "error" for texts that do not fit."""
        texts = [texts] if isinstance(texts, str) else texts
        ids, cut = self.fit(texts)
        if cut:
            told = (
                f"{len(cut)} of {len(texts)} texts do not fit into {self.context} ids, the first: {texts[cut[0]]!r:.80}"
            )
            if self.overflow == "error":
                raise ValueError(f"texts must fit, got {told}; shorten them, or take overflow=truncate")
            if self.overflow == "warn":
                warnings.warn(f"{told}; their ends are cut off", stacklevel=2)
        return ids

    def fit(self, texts: Sequence[str]) -> Fitted:
        """Whatever the policy: texts that do not fit lose their ends, and are named."""
        rows, cut = self.rows(texts)
        return Fitted(self.padded(rows), cut)

    def rows(self, texts: Sequence[str]) -> tuple[list[list[int]], tuple[int, ...]]:
        """The ids of each text without padding, and which of the texts were cut."""
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise ValueError(f"texts must be strings, got {wrong[0]!r:.80}")
        rows, end = self.vocabulary.encode(texts), self.vocabulary.end
        cut = tuple(row for row, ids in enumerate(rows) if len(ids) > self.context)
        return [ids if len(ids) <= self.context else [*ids[: self.context - 1], end] for ids in rows], cut

    def padded(self, rows: Sequence[Sequence[int]]) -> Int64[Tensor, "B T"]:
        longest = self.context if self.whole else max(map(len, rows), default=0)
        padded = torch.full((len(rows), longest), self.vocabulary.pad, dtype=torch.int64)
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return padded

    def to_dict(self) -> dict[str, Any]:
        """What text.json holds. A vocabulary of its own lies beside as tokenizer.json."""
        return {"vocabulary": CLIP if self.name == CLIP else FILE, "context": self.context, "whole": self.whole}

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a model folder, if it has one. Raises: ValueError."""
        if not (path := folder / TEXT).is_file():
            return None
        held = json.loads(path.read_text("utf-8"))
        match held:
            case {
                "vocabulary": "clip" | "tokenizer.json" as name,
                "context": int(context),
                "whole": bool(whole),
                **rest,
            }:
                if not rest:
                    return cls(context, whole=whole, vocabulary=CLIP if name == CLIP else folder / FILE)
        raise ValueError(f"must hold vocabulary ({CLIP} or {FILE}), context and whole, got {held!r:.120}")


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

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.start, *self.pairs.encode(text), self.end] for text in texts]


@cache
def byte_pairs() -> Vocabulary:
    return BytePairs()


@cache
def from_file(path: Path) -> Vocabulary:
    raise NotImplementedError  # replaced in this issue


def described(tokenizer: Tokenizer) -> Mapping[str, str]:
    """The texts of text.json and, with a vocabulary of its own, tokenizer.json."""
    held = {TEXT: json.dumps(tokenizer.to_dict(), indent=2) + "\n"}
    return held if tokenizer.name == CLIP else held | {FILE: Path(tokenizer.name).read_text("utf-8")}
