"""Decode the bytes of raw annotations. Bytes that cannot be decoded give an exception, which no annotation accepts."""

import json


def decode_json(content: bytes) -> dict[str, object] | Exception:
    """Return a JSON object, or the error where it is none, or has a key twice."""
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_make_object)
    except (ValueError, RecursionError) as error:
        return error
    return value if isinstance(value, dict) else TypeError(f"a JSON object is needed, got {type(value).__name__}")


def _make_object(items: list[tuple[str, object]]) -> dict[str, object]:
    if len(values := dict(items)) < len(items):
        raise ValueError("keys must differ")
    return values


def decode_text(content: bytes, encoding: str = "utf-8") -> str | ValueError:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return ValueError("not in UTF-8")
