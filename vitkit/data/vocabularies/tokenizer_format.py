"""The text of a tokenizer.json for vocabularies of other files or trained here."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitkit.data.vocabularies.token_spelling import map_byte_characters
from vitkit.data.vocabularies.vocabulary import END

BYTE_PAIRS = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
LENGTH = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_type_id": 0}
PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def format_byte_pairs(
    vocab: Mapping[str, int], merges: Sequence[Any], special: Iterable[str], *, end: str | None, prefixed: bool = False
) -> str:
    """Return the text of a tokenizer.json for byte-level byte pairs, as GPT-2 splits texts.

    Args: special: tokens that no text may spell. end: the one behind each text. prefixed: begin texts with a space.
    """
    level = {"type": "ByteLevel", "add_prefix_space": prefixed, "trim_offsets": True, "use_regex": True}
    model = {**BYTE_PAIRS, "vocab": dict(vocab), "merges": list(merges)}
    return format_tokenizer_json(
        model, {"pre_tokenizer": level, "decoder": level}, {name: vocab[name] for name in special}, finish=end
    )


def format_tokenizer_json(
    model: Mapping[str, Any],
    parts: Mapping[str, Any],
    special: Mapping[str, int],
    *,
    begin: str | None = None,
    finish: str | None = None,
    pad: str | None = None,
) -> str:
    """Return the text of a tokenizer.json.

    Args:
        parts: normalizer, pre_tokenizer and decoder.
        special: tokens that no text may spell, with their ids.
        begin, finish, pad: those of them that stand around a text.
    """
    sides = [[(name, special[name])] if name else [] for name in (begin, finish)]
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None if pad is None else {**LENGTH, "pad_id": special[pad], "pad_token": pad},
        "added_tokens": sorted(format_special(special), key=lambda token: token["id"]),
        "normalizer": None,
        "pre_tokenizer": None,
        "decoder": None,
        **parts,
        "post_processor": format_template(*sides),
        "model": model,
    }
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def format_special(special: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the entries of added_tokens for tokens that no text may spell."""
    return [{"id": number, "content": name, "special": True, **PLAIN} for name, number in special.items()]


def format_template(begin: Sequence[tuple[str, int]], finish: Sequence[tuple[str, int]]) -> dict[str, Any] | None:
    """Return a post-processor that puts tokens, with these names and ids, around texts."""
    if not begin and not finish:
        return None
    sides = [[{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in side] for side in (begin, finish)]
    text, pair = ({"Sequence": {"id": letter, "type_id": 0}} for letter in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [*sides[0], text, *sides[1]],
        "pair": [*sides[0], text, *sides[1], pair, *sides[1]],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in (*begin, *finish)},
    }


def format_raw_bytes(special: Iterable[str]) -> str:
    """Return the text of a tokenizer.json with the ids of RawBytes and further special tokens behind them."""
    vocab = {sign: byte for sign, byte in map_byte_characters().items()}
    names = [END, *special]
    vocab |= {name: 256 + place for place, name in enumerate(names)}
    return format_byte_pairs(vocab, (), names, end=END)
