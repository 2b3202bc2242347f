"""A contact sheet: images in rows, each with a line of text."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from vitkit.support.files import replace_file

TILE, TEXT, GAP = 128, 36, 8  # pixels: the side of a picture, the height of what stands below, what is between


class Tile(NamedTuple):
    """A picture, and a line or two to stand below it."""

    picture: Image.Image
    lines: tuple[str, ...]


def save_contact_sheet(tiles: Sequence[Tile], path: Path, columns: int = 6) -> None:
    """Pictures in rows, in order, each shown whole."""
    columns = max(min(columns, len(tiles)), 1)
    rows = -(-len(tiles) // columns)
    step = TILE + GAP, TILE + TEXT + GAP
    sheet = Image.new("RGB", (columns * step[0] + GAP, max(rows, 1) * step[1] + GAP), "white")
    draw, letters = ImageDraw.Draw(sheet), font()
    for place, (picture, lines) in enumerate(tiles):
        left, top = GAP + place % columns * step[0], GAP + place // columns * step[1]
        sheet.paste(shown(picture), (left, top))
        for number, line in enumerate(lines):
            draw.text((left, top + TILE + 2 + 15 * number), shortened(line, letters), "black", letters)
    with replace_file(path) as beside:
        sheet.save(beside, "png")


def shown(picture: Image.Image) -> Image.Image:
    """The whole picture in a grey square; one of few pixels keeps them sharp."""
    scale = TILE / max(picture.size)
    size = max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)
    sharp = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS
    square = Image.new("RGB", (TILE, TILE), "lightgrey")
    square.paste(picture.resize(size, sharp), ((TILE - size[0]) // 2, (TILE - size[1]) // 2))
    return square


def font() -> ImageFont.FreeTypeFont:
    """Matplotlib's, which has more scripts than Pillow's own."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 11)


def shortened(line: str, letters: ImageFont.FreeTypeFont) -> str:
    """As much of both ends as there is room for: captions begin with what matters, names of files differ at the end."""
    line = line.replace("\n", " ")
    if letters.getlength(line) <= TILE:
        return line
    middle = len(line) // 2
    begin, end = min(middle, TILE), max(middle, len(line) - TILE)  # a letter takes a pixel at least
    while letters.getlength(short := f"{line[:begin]}…{line[end:]}") > TILE:
        begin, end = (begin - 1, end) if begin > len(line) - end else (begin, end + 1)
    return short
