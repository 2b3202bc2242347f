"""Assemble one HTML file that loads nothing from outside and whose data can never become code."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from typing import Any

from vitkit.support.texts import ENGLISH, read_asset

PACKAGE = "vitkit.pages"  # of the style and the script that all pages share


POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'sha256-{digest}'"
)


PAGE = """<!DOCTYPE html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def assemble_page(title: str, style: str, body: str, script: str, data: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """Return a page of these parts, after the style and the script that all pages share (common.css, common.js).

    Args:
        title: any text, such as a file's name.
        style, body, script: the page's own CSS, HTML and JavaScript, from assets, never from a user's input.
        data: what JSON can hold, with `texts` by name. The script reads it as the constant `data`.
        lang: the lang attribute of the page, such as zh-CN.

    Raises: ValueError for a number that JSON cannot hold, and for an asset that would end its element.
    """
    script = f"\n{read_asset('common.js', PACKAGE)}\n{script}\n"
    style = f"{read_asset('common.css', PACKAGE)}\n{style}"
    for name, text, end in (("style", style, "</style"), ("script", script, "</script")):
        if re.search(end, text, re.IGNORECASE):
            raise ValueError(f"{name} must not end its own element, got {end} in it; build it from two strings")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return PAGE.format(
        lang=html.escape(lang),
        policy=POLICY.format(digest=digest),
        title=html.escape(title.encode(errors="replace").decode()),
        style=style,
        body=body,
        data=escape_json(data),
        script=script,
    )


def escape_json(data: Mapping[str, Any]) -> str:
    """Return JSON in ASCII without <: nothing in it ends a script element, and U+2028 is escaped too."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
