"""Matches as pictures: a self-contained HTML page, and a contact sheet."""

import base64
import os
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.data.pixel_values import choose_window
from vitkit.data.preprocess import PictureError, Preprocess, is_deep, read_image
from vitkit.retrieval.query import Match, MatchGroup
from vitkit.retrieval.samples import reopen_samples
from vitkit.support.contact_sheet import Tile, save_contact_sheet
from vitkit.support.files import write_text

SIDE = 192  # pixels of a thumbnail at most
RGB = Preprocess((SIDE, SIDE), (0.5,) * 3, (0.5,) * 3, background="contrast")  # for its `convert`
# Nothing is fetched and nothing runs, whatever a caption or a path contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --ink: #222; --ground: #fff; --line: #ccc; --panel: #eee }
@media (prefers-color-scheme: dark) { :root { --ink: #e9ebef; --ground: #14161a; --line: #383d47; --panel: #1d2026 } }
body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: var(--ink); background: var(--ground) }
section { display: flex; flex-wrap: wrap; gap: 16px; padding: 8px 0 16px }
h2 { font-size: 14px; margin: 0; border-top: 1px solid var(--line); padding-top: 16px }
figure { margin: 0; width: 192px; overflow-wrap: anywhere }
img, .gone { display: block; width: 192px; height: 192px; object-fit: contain; background: var(--panel) }
figcaption { font-size: 12px; white-space: pre-line; max-height: 12em; overflow: auto }
a { color: inherit }
b { font-variant-numeric: tabular-nums }
"""


def write_html(title: str, groups: Sequence[MatchGroup], path: Path) -> None:
    """Write an HTML page with a section for each group. Paths and captions are escaped."""
    sections = "\n".join(
        f"{name and f'<h2>{name}</h2>'}<section>\n{''.join(map(format_figure, group.matches))}</section>"
        for group in groups
        for name in [escape_text(group.title)]
    )
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" '
        f'content="{POLICY}">\n<title>{escape_text(title)}</title>\n<style>{STYLE}</style>\n<h1>{escape_text(title)}</h1>\n'
        f"{sections or '<p>Nothing was found.</p>'}\n</html>\n"
    )
    write_text(path, page)


def write_png(groups: Sequence[MatchGroup], path: Path) -> None:
    """Write a contact sheet with the matches of all groups."""
    blank = Image.new("RGB", (SIDE, SIDE), "white")
    tiles = [
        Tile(
            make_thumbnail(match) or blank,
            (f"{match.score:.3f}{count_also(match)}", match.caption.partition("\n")[0] or match.path),
        )
        for group in groups
        for match in group.matches
    ]
    save_contact_sheet(tiles, path)


def format_figure(match: Match) -> str:
    picture = make_thumbnail(match)
    image = f'<img alt="" src="{encode_url(picture)}">' if picture else '<div class="gone">can no longer be read</div>'
    lines = [f"<b>{match.score:.3f}</b>{count_also(match)} {match.width} x {match.height}", escape_text(match.path)]
    lines += [escape_text(match.caption)] if match.caption else []
    link = escape(match.file.as_uri() if match.file.is_absolute() else str(match.file))
    return f'<figure><a href="{link}">{image}</a><figcaption>{chr(10).join(lines)}</figcaption></figure>\n'


def count_also(match: Match) -> str:
    """Return the number of near-duplicates that are not shown, as +N."""
    return f" +{len(match.also)}" if match.also else ""


def make_thumbnail(match: Match) -> Image.Image | None:
    try:
        picture = read_match(match)
        window = choose_window(np.asarray(picture)) if is_deep(picture) else None
        picture = replace(RGB, window=window).convert(picture)
    except (PictureError, ValueError, OSError):
        return None
    picture.thumbnail((SIDE, SIDE))
    return picture


def read_match(match: Match) -> Image.Image:
    """Read the picture of a match. Raises: PictureError or ValueError if it no longer exists."""
    if match.file.is_file() or os.path.isdir(match.root):
        return read_image(match.file, (SIDE, SIDE))
    sample = reopen_samples(match.root).get(str(match.file))
    if sample is None:
        raise PictureError(f"picture must be in its source, got picture={match.file}; source={match.root}")
    return sample.source.read_image(sample.index, (SIDE, SIDE))


def encode_url(picture: Image.Image) -> str:
    """Return a picture as a data URL."""
    kind = "png" if picture.width * picture.height < SIDE * SIDE // 4 else "jpeg"
    picture.save(buffer := BytesIO(), kind, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def escape_text(text: str) -> str:
    return escape(text.encode("utf-8", "replace").decode("utf-8"))
