"""The spelling of the tokens of a tokenizer.json, read from its decoder one token at a time."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from vitkit.data.vocabularies.vocabulary import Margin

BYTE = re.compile("<0x([0-9A-F]{2})>")
# `tokenizers` joins these to the word in front of them if a WordPiece decoder cleans up.
JOINED = {" .": ".", " ?": "?", " !": "!", " ,": ",", " n't": "n't", " 'm": "'m", " 's": "'s", " 've": "'ve"}
JOINED |= {" 're": "'re"}


class Spelling(NamedTuple):
    """The bytes of a token within a text, and the space that the text gains."""

    spell: Callable[[str], bytes]
    margin: Margin


def read_spelling(decoder: Mapping[str, Any] | None) -> Spelling:
    """Return the spelling of tokens by a decoder. Raises: ValueError for one that does not work token by token."""
    if decoder is None:  # `tokenizers` puts spaces between tokens
        return Spelling(lambda token: f" {token}".encode(), Margin.FRONT)
    steps: list[Callable[[str], str]] = []
    last, margin, fused = str.encode, Margin.NONE, False
    for part in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
        match part:
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if fused:
                margin = Margin.FRONT
            case {"type": "Fuse"}:
                fused = True
            case _ if fused or last is not str.encode:
                raise _refuse(decoder)
            case {"type": "ByteLevel"}:
                last = spell_byte_level
            case {"type": "ByteFallback"}:
                last = spell_fallback
            case {"type": "Metaspace", "replacement": str(sign)}:
                steps.append(_replace(sign, " "))
                prefixed = part.get("prepend_scheme", "always") != "never" and part.get("add_prefix_space", True)
                margin = Margin.FRONT if prefixed else margin
            case {"type": "Replace", "pattern": {"String": str(sign)}, "content": str(content)} if sign:
                steps.append(_replace(sign, content))
            case {"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(cleanup)}:
                steps.append(_join_word(prefix, cleanup))
                margin = Margin.FRONT
            case {"type": "BPEDecoder", "suffix": str(suffix)} if suffix:
                steps.append(_replace(suffix, " "))
                margin = Margin.BACK
            case _:
                raise _refuse(decoder)

    def spell(token: str) -> bytes:
        for step in steps:
            token = step(token)
        return last(token)

    return Spelling(spell, margin)


def _refuse(decoder: Mapping[str, Any]) -> ValueError:
    return ValueError(f"decoder must spell texts token by token to be decoded with, got {decoder!r:.160}")


def _replace(sign: str, content: str) -> Callable[[str], str]:
    return lambda token: token.replace(sign, content)


def _join_word(prefix: str, cleanup: bool) -> Callable[[str], str]:
    def join(token: str) -> str:
        word = token.removeprefix(prefix) if prefix and token.startswith(prefix) else f" {token}"
        return JOINED.get(word, word) if cleanup else word

    return join


def spell_fallback(token: str) -> bytes:
    """Return the byte of a token such as <0x0A>; the UTF-8 bytes of any other token."""
    byte = BYTE.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.encode()


def spell_byte_level(token: str) -> bytes:
    """Return the bytes of a byte-level token's characters; the UTF-8 bytes of a token with others."""
    table = map_byte_characters()
    return bytes(table[sign] for sign in token) if all(sign in table for sign in token) else token.encode()


@cache
def map_byte_characters() -> dict[str, int]:
    """Return GPT-2's characters for the 256 bytes: printable ones are themselves, the others follow from U+0100."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + place): byte for place, byte in enumerate(others)}
