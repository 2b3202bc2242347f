"""Decode the bytes of raw annotations. Bytes that cannot be decoded give an exception, which no annotation accepts."""

import json


def decode_json(content: bytes) -> dict[str, object] | Exception:
    """Return a JSON object, or the error where it is none."""
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return error
    return value if isinstance(value, dict) else TypeError(f"a JSON object is needed, got {type(value).__name__}")


def decode_text(content: bytes, encoding: str = "utf-8") -> str | ValueError:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return ValueError("not in UTF-8")
