"""Contact sheets of retrieved images and captions."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Source
from vitkit.evaluation.recall import Retrieval
from vitkit.support import contact_sheet

CAPTIONS, MATCHES = 8, 5  # captions in a sheet, and the retrieved images of each
IMAGES = 24  # in a sheet
LETTERS = 19  # in a line of a tile


def draw_captions_with_images(retrieval: Retrieval, source: Source, preprocess: Preprocess, path: Path) -> None:
    """Draw a row for each of some captions: one of its images, then the images of the highest scores."""
    read_image, pairs = make_image_reader(retrieval, source, preprocess), retrieval.pairs.tolist()
    first_images = {caption: image for image, caption in sorted(pairs, reverse=True)}
    positives = set(map(tuple, pairs))
    tiles: list[contact_sheet.Tile] = []
    for caption in spread_indices(len(retrieval.captions), CAPTIONS):
        tiles.append(contact_sheet.Tile(read_image(first_images[caption]), wrap_text(retrieval.captions[caption])))
        best = (retrieval.images @ retrieval.texts[caption]).topk(min(MATCHES, len(retrieval.images)))
        for rank, (image, score) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True), 1):
            line = f"{rank}  {format_mark((image, caption) in positives)}  {score:.2f}"
            tiles.append(contact_sheet.Tile(read_image(image), (line,)))
    contact_sheet.save_contact_sheet(tiles, path, 1 + min(MATCHES, len(retrieval.images)))


def draw_images_with_captions(retrieval: Retrieval, source: Source, preprocess: Preprocess, path: Path) -> None:
    """Draw some images, each with the caption of the highest score, a wrong one with its own caption too."""
    read_image = make_image_reader(retrieval, source, preprocess)
    tiles: list[contact_sheet.Tile] = []
    for image in spread_indices(len(retrieval.images), IMAGES):
        best = int((retrieval.texts @ retrieval.images[image]).argmax())
        tiles.append(contact_sheet.Tile(read_image(image), describe_caption(retrieval, image, best)))
    contact_sheet.save_contact_sheet(tiles, path)


def describe_caption(retrieval: Retrieval, image: int, caption: int) -> tuple[str, ...]:
    """Return the lines of a tile: a retrieved caption, and below a wrong one the image's own."""
    captions = retrieval.pairs[retrieval.pairs[:, 0] == image, 1].tolist()
    line = f"{format_mark(caption in captions)} {retrieval.captions[caption]}"
    return wrap_text(line) if caption in captions else (line, f"{format_mark(True)} {retrieval.captions[captions[0]]}")


def make_image_reader(retrieval: Retrieval, source: Source, preprocess: Preprocess) -> Callable[[int], Image.Image]:
    """Return a function from a row of the retrieval to its image, read at the size of a tile."""
    side = contact_sheet.TILE, contact_sheet.TILE
    return lambda row: preprocess.convert(source.read_image(retrieval.indices[row], side))


def spread_indices(count: int, most: int) -> list[int]:
    """Return at most `most` of 0..count-1, evenly spaced."""
    return sorted({round(place) for place in torch.linspace(0, count - 1, min(count, most)).tolist()})


def format_mark(correct: bool) -> str:
    return "\N{CHECK MARK}" if correct else "\N{BALLOT X}"


def wrap_text(text: str) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, LETTERS, max_lines=2, placeholder="…")) or ("",)
