"""Contact sheets: images in rows, each with lines of text below it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from vitkit.support.files import replace_file

TILE, TEXT, GAP = 128, 36, 8  # pixels: side of an image, height of its text, gap


class Tile(NamedTuple):
    """An image, and a line or two of text below it."""

    image: Image.Image
    lines: tuple[str, ...]


def save_contact_sheet(tiles: Sequence[Tile], path: Path, columns: int = 6) -> None:
    """Save the tiles in rows, in order, as a PNG file. Each image is shown whole."""
    columns = max(min(columns, len(tiles)), 1)
    rows = -(-len(tiles) // columns)
    step = TILE + GAP, TILE + TEXT + GAP
    sheet = Image.new("RGB", (columns * step[0] + GAP, max(rows, 1) * step[1] + GAP), "white")
    draw, letters = ImageDraw.Draw(sheet), load_font()
    for place, (image, lines) in enumerate(tiles):
        left, top = GAP + place % columns * step[0], GAP + place // columns * step[1]
        sheet.paste(fit_square(image), (left, top))
        for number, line in enumerate(lines):
            draw.text((left, top + TILE + 2 + 15 * number), shorten_line(line, letters), "black", letters)
    with replace_file(path) as temporary:
        sheet.save(temporary, "png")


def fit_square(image: Image.Image) -> Image.Image:
    """Fit the whole image into a grey square. A small one keeps its pixels sharp."""
    scale = TILE / max(image.size)
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    method = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS
    square = Image.new("RGB", (TILE, TILE), "lightgrey")
    square.paste(image.resize(size, method), ((TILE - size[0]) // 2, (TILE - size[1]) // 2))
    return square


def load_font() -> ImageFont.FreeTypeFont:
    """Load Matplotlib's font, which has more scripts than Pillow's."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 11)


def shorten_line(line: str, letters: ImageFont.FreeTypeFont) -> str:
    """Cut the middle of a line to fit a tile: captions matter at the beginning, names of files differ at the end."""
    line = line.replace("\n", " ")
    if letters.getlength(line) <= TILE:
        return line
    middle = len(line) // 2
    begin, end = min(middle, TILE), max(middle, len(line) - TILE)  # a letter is at least a pixel wide
    while letters.getlength(short := f"{line[:begin]}…{line[end:]}") > TILE:
        begin, end = (begin - 1, end) if begin > len(line) - end else (begin, end + 1)
    return short
