"""A bound on the growth of a text by the normalisers of a vocabulary, which are not trusted.

Each may be harmless by itself: thirty replacements of one letter by two make gigabytes of one letter.
"""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_GROWTH = 64  # times, by one part; NFKC, the table of most SentencePiece models, makes 33 bytes of U+FDFA
MOST_GROWTH_TOGETHER = 600  # times; those of ALBERT, NFKD, lower case and a table, make 545 at most
# The most bytes that a byte becomes, measured over all characters. The normal forms make 33 bytes of U+FDFA's three.
FORMS: Mapping[str, float] = {
    "NFC": 3.0,
    "NFD": 3.0,
    "NFKC": 11.0,
    "NFKD": 11.0,
    "BertNormalizer": 3.0,
    "Lowercase": 1.5,
}
MOST_PARTS = 64  # in one place; known tokenizers have ten


def check_growth(parts: Sequence[Mapping[str, Any]]) -> None:
    """Check that normalisers and pre-tokenizers cannot make a text too many times longer. Raises: ValueError."""
    if len(parts) > MOST_PARTS:
        raise ValueError(f"normalizer and pre_tokenizer must have at most {MOST_PARTS} parts, got {len(parts):,}")
    growths = [max(1.0, _find_growth(part)) for part in parts]
    if (growth := max(growths, default=1)) > MOST_GROWTH:
        raise ValueError(f"a text must grow {MOST_GROWTH} times at most by one part, got {growth:.3g} times")
    if (growth := math.prod(growths)) > MOST_GROWTH_TOGETHER:
        rule = f"a text must grow {MOST_GROWTH_TOGETHER} times at most by all parts together"
        raise ValueError(f"{rule}, got {growth:.3g} times")


def _find_growth(part: Mapping[str, Any]) -> float:
    match part:
        case {"type": "Replace", "pattern": {"String": str(sign)}, "content": str(content)}:
            return len(content.encode()) / max(1, len(sign.encode()))
        case {"type": "Replace", "content": str(content)} | {"type": "Prepend", "prepend": str(content)}:
            return float(len(content.encode()))
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return float(measure_charsmap(base64.b64decode(table, validate=True)))
        case {"type": "ByteLevel"}:
            return 2.0
        case {"type": str(kind)}:
            return FORMS.get(kind, 1.0)
    return 1.0


def measure_charsmap(table: bytes) -> int:
    """Return the length in bytes of the longest replacement of a character in a SentencePiece table.

    A table is the size of a trie, the trie, and texts that end with a zero byte.
    """
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(map(len, texts.split(b"\0")))


def find_charsmap(model: bytes) -> bytes:
    """Return the table of characters in a SentencePiece model: field 2 of the normalizer_spec, field 3."""
    return b"".join(
        table
        for number, settings in read_fields(model)
        if number == 3
        for inner, table in read_fields(settings)
        if inner == 2
    )


def read_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and contents of a Protocol Buffers message's fields; numbers as none."""
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        size = 0
        match key & 7:
            case 0:
                _, place = _read_varint(message, place)
            case 1 | 5:
                place += 8 if key & 7 == 1 else 4
            case 2:
                size, place = _read_varint(message, place)
            case kind:
                raise ValueError(f"it must have fields of known kinds, got kind {kind}")
        yield key >> 3, message[place : place + size]
        place += size
    if place > len(message):
        raise ValueError("it must be whole, and is cut")


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number in groups of seven bits, the lowest first, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte = message[place]
        value, place = value | (byte & 127) << shift, place + 1
        if byte < 128:
            return value, place
    raise ValueError("it must be whole, and is cut")
