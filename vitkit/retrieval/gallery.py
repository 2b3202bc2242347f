"""What was found as pictures: a page of HTML that holds all it shows, and a contact sheet."""

import base64
import os
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path

from PIL import Image

from vitkit.data.preprocess import PictureError, Preprocess, read
from vitkit.retrieval.query import Match
from vitkit.retrieval.samples import open_again
from vitkit.support.contact_sheet import Tile, save_contact_sheet
from vitkit.support.files import replace_file

SIDE = 192  # pixels of a thumbnail at most
FLAT = Preprocess((SIDE, SIDE), (0.5,) * 3, (0.5,) * 3)  # whose `convert` makes RGB of any picture
# Nothing is fetched and nothing runs, whatever a caption or a path says.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: #222; background: #fff }
section { display: flex; flex-wrap: wrap; gap: 16px; padding: 8px 0 16px }
section + section { border-top: 1px solid #ccc; padding-top: 16px }
figure { margin: 0; width: 192px; overflow-wrap: anywhere }
img, .gone { display: block; width: 192px; height: 192px; object-fit: contain; background: #eee }
figcaption { font-size: 12px; white-space: pre-line; max-height: 12em; overflow: auto }
a { color: inherit }
b { font-variant-numeric: tabular-nums }
"""


def write_html(title: str, groups: Sequence[Sequence[Match]], path: Path) -> None:
    """A section for each group, in order. Paths and captions are text, whatever is in them."""
    sections = "\n".join(f"<section>\n{''.join(map(figure, group))}</section>" for group in groups)
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" '
        f'content="{POLICY}">\n<title>{plain(title)}</title>\n<style>{STYLE}</style>\n<h1>{plain(title)}</h1>\n'
        f"{sections or '<p>Nothing was found.</p>'}\n</html>\n"
    )
    with replace_file(path) as beside:
        beside.write_text(page, "utf-8")


def write_png(groups: Sequence[Sequence[Match]], path: Path) -> None:
    """All of them, the groups one after the other."""
    blank = Image.new("RGB", (SIDE, SIDE), "white")
    tiles = [
        Tile(
            thumbnail(found) or blank,
            (f"{found.score:.3f}{more(found)}", found.caption.partition("\n")[0] or found.path),
        )
        for group in groups
        for found in group
    ]
    save_contact_sheet(tiles, path)


def figure(found: Match) -> str:
    picture = thumbnail(found)
    image = f'<img alt="" src="{data_of(picture)}">' if picture else '<div class="gone">can no longer be read</div>'
    lines = [f"<b>{found.score:.3f}</b>{more(found)} {found.width} x {found.height}", plain(found.path)]
    lines += [plain(found.caption)] if found.caption else []
    link = escape(found.file.as_uri() if found.file.is_absolute() else str(found.file))
    return f'<figure><a href="{link}">{image}</a><figcaption>{chr(10).join(lines)}</figcaption></figure>\n'


def more(found: Match) -> str:
    """How many near-duplicates are not shown."""
    return f" +{len(found.also)}" if found.also else ""


def thumbnail(found: Match) -> Image.Image | None:
    try:
        picture = FLAT.convert(read_match(found))
    except (PictureError, ValueError, OSError):
        return None
    picture.thumbnail((SIDE, SIDE))
    return picture


def read_match(found: Match) -> Image.Image:
    """Raises: PictureError or ValueError for what is no longer there."""
    if found.file.is_file() or os.path.isdir(found.root):
        return read(found.file, (SIDE, SIDE))
    sample = open_again(found.root).get(str(found.file))
    if sample is None:
        raise PictureError(f"picture must be in its source, got picture={found.file}; source={found.root}")
    return sample.source.picture(sample.index, (SIDE, SIDE))


def data_of(picture: Image.Image) -> str:
    picture.save(held := BytesIO(), "png" if picture.width * picture.height < SIDE * SIDE // 4 else "jpeg", quality=85)
    kind = "png" if held.getvalue().startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(held.getvalue()).decode('ascii')}"


def plain(text: str) -> str:
    return escape(text.encode("utf-8", "replace").decode("utf-8"))
