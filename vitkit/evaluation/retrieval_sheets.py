"""What a CLIP finds, as pictures: N pictures, U captions, E embedding."""

import textwrap
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitkit.support import contact_sheet

QUERIES, FOUND = 8, 5  # captions in a sheet, and what stands beside each
ASKED = 24  # pictures
LETTERS = 19  # in a line of a tile


class Both(NamedTuple):
    """Args: together: (picture, caption) of all that belong together, by their rows. picture: that of a row."""

    images: Float[Tensor, "N E"]
    texts: Float[Tensor, "U E"]
    captions: Sequence[str]
    together: Set[tuple[int, ...]]
    picture: Callable[[int], Image.Image]


def of_captions(both: Both, path: Path) -> None:
    """A row for each of some captions: one of its own pictures, then the first that it finds."""
    own = {caption: picture for picture, caption in sorted(both.together, reverse=True)}
    tiles: list[contact_sheet.Tile] = []
    for text in spread(len(both.captions), QUERIES):
        tiles.append(contact_sheet.Tile(both.picture(own[text]), wrapped(both.captions[text])))
        best = (both.images @ both.texts[text]).topk(min(FOUND, len(both.images)))
        for rank, (place, score) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True), 1):
            line = f"{rank}  {sign((place, text) in both.together)}  {score:.2f}"
            tiles.append(contact_sheet.Tile(both.picture(place), (line,)))
    contact_sheet.contact_sheet(tiles, path, 1 + min(FOUND, len(both.images)))


def of_pictures(both: Both, path: Path) -> None:
    """Some pictures, each with the first caption that it finds."""
    tiles: list[contact_sheet.Tile] = []
    for place in spread(len(both.images), ASKED):
        best = int((both.texts @ both.images[place]).argmax())
        line = f"{sign((place, best) in both.together)} {both.captions[best]}"
        tiles.append(contact_sheet.Tile(both.picture(place), wrapped(line)))
    contact_sheet.contact_sheet(tiles, path)


def spread(count: int, most: int) -> list[int]:
    """So many of 0..count-1 at most, evenly."""
    return sorted({round(place) for place in torch.linspace(0, count - 1, min(count, most)).tolist()})


def sign(right: bool) -> str:
    return "\N{CHECK MARK}" if right else "\N{BALLOT X}"


def wrapped(text: str) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, LETTERS, max_lines=2, placeholder="…")) or ("",)
