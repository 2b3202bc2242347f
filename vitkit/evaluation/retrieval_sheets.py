"""Contact sheets of a retrieval."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Source
from vitkit.evaluation.recall import Retrieval
from vitkit.support import contact_sheet

QUERIES, FOUND = 8, 5  # captions in a sheet, and what stands beside each
ASKED = 24  # pictures
LETTERS = 19  # in a line of a tile


def draw_captions_with_images(retrieval: Retrieval, source: Source, preprocess: Preprocess, path: Path) -> None:
    """Draw a row for each of some captions: one of its own images, then the first that it finds."""
    read, pairs = image_reader(retrieval, source, preprocess), retrieval.pairs.tolist()
    own = {caption: image for image, caption in sorted(pairs, reverse=True)}
    positives = set(map(tuple, pairs))
    tiles: list[contact_sheet.Tile] = []
    for caption in spread(len(retrieval.captions), QUERIES):
        tiles.append(contact_sheet.Tile(read(own[caption]), wrapped(retrieval.captions[caption])))
        best = (retrieval.images @ retrieval.texts[caption]).topk(min(FOUND, len(retrieval.images)))
        for rank, (image, score) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True), 1):
            line = f"{rank}  {sign((image, caption) in positives)}  {score:.2f}"
            tiles.append(contact_sheet.Tile(read(image), (line,)))
    contact_sheet.save_contact_sheet(tiles, path, 1 + min(FOUND, len(retrieval.images)))


def draw_images_with_captions(retrieval: Retrieval, source: Source, preprocess: Preprocess, path: Path) -> None:
    """Draw some images, each with the first caption that it finds."""
    read, positives = image_reader(retrieval, source, preprocess), set(map(tuple, retrieval.pairs.tolist()))
    tiles: list[contact_sheet.Tile] = []
    for image in spread(len(retrieval.images), ASKED):
        best = int((retrieval.texts @ retrieval.images[image]).argmax())
        line = f"{sign((image, best) in positives)} {retrieval.captions[best]}"
        tiles.append(contact_sheet.Tile(read(image), wrapped(line)))
    contact_sheet.save_contact_sheet(tiles, path)


def image_reader(retrieval: Retrieval, source: Source, preprocess: Preprocess) -> Callable[[int], Image.Image]:
    """Return a function that reads the image of a row of the retrieval, small."""
    side = contact_sheet.TILE, contact_sheet.TILE
    return lambda row: preprocess.convert(source.read_image(retrieval.indices[row], side))


def spread(count: int, most: int) -> list[int]:
    """Return so many of 0..count-1 at most, evenly."""
    return sorted({round(place) for place in torch.linspace(0, count - 1, min(count, most)).tolist()})


def sign(right: bool) -> str:
    return "\N{CHECK MARK}" if right else "\N{BALLOT X}"


def wrapped(text: str) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, LETTERS, max_lines=2, placeholder="…")) or ("",)
