"""Lines of texts that people write, and the class names in them."""

import re


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, which end with LF, CR LF or CR alone; `str.splitlines` also splits at form feeds,
    U+2028 and others, which may be within a caption or a name."""
    lines = re.split(r"\r\n|\r|\n", text)
    return lines if lines[-1] else lines[:-1]
