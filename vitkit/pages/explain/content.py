"""All that a page about one picture holds, as one file.

T tokens.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from PIL import Image

from vitkit.data.preprocess import Preprocess
from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.measure.flags import PACKAGE as FLAGS
from vitkit.interpret.measure.statistics import Statistics
from vitkit.pages.assemble import assembled
from vitkit.pages.explain import over_data
from vitkit.pages.explain.packing import Packed
from vitkit.pages.explain.photo import render_photo
from vitkit.pages.page import Page
from vitkit.support.texts import ENGLISH, Sentence, read_asset, read_texts

PACKAGE = "vitkit.pages.explain"  # where the texts and scripts of this page are
SCRIPTS = ("decode.js", "photo.js", "weights.js", "answers.js", "over_data.js", "explain.js")


class Layer(NamedTuple):
    """Args: place: among all layers of the model, from 0."""

    place: int
    name: str
    packed: Packed


class Picture(NamedTuple):
    """A photo, what it is called, and how the model sees it.

    Args: read: the name of the text that says where the model's answer comes from; "" where that is not known.
    """

    photo: Image.Image
    name: str
    preprocess: Preprocess
    layout: Layout
    read: str = ""


class OverData(NamedTuple):
    """Args: source: what the pictures are; layers: all of the model."""

    found: Statistics
    flags: Sequence[Sentence]
    source: str
    layers: Sequence[str]


def page(
    model: str,
    picture: Picture,
    layers: Sequence[Layer],
    answers: dict[str, Any],
    over: OverData | None = None,
    notes: Sequence[Sentence] = (),
    language: str = ENGLISH,
) -> Page:
    """Args: answers: of `answers.of_classes` or `answers.of_vectors`; notes: what was left out, and why.

    Raises: ValueError for a language without texts.
    """
    layout = picture.layout
    title, told = f"{model}: {picture.name}", [sizes(layers), *notes]
    texts = read_texts(language, PACKAGE) | read_texts(language, FLAGS)
    data = {
        "texts": texts,
        "model": printable(model),
        "photo": printable(picture.name),
        "picture": render_photo(picture.photo, picture.preprocess, layout),
        "grid": layout.grid,
        "patch": layout.patch,
        "prefix": layout.prefix,
        "tokens": layout.num_tokens,
        "start": start(picture),
        "read": picture.read,
        "layers": [
            {"place": one.place, "name": one.name, "heads": one.packed.heads, "content": one.packed.content}
            for one in layers
        ],
        "answers": answers,
        "statistics": None if over is None else over_data.describe_statistics(*over, texts),
        "notes": [one.within(texts) for one in told],
    }
    body = read_asset("explain.html", PACKAGE).replace("{{noscript}}", escape(texts["noscript"]))
    script = "\n".join(read_asset(name, PACKAGE) for name in SCRIPTS)
    html = assembled(title, read_asset("explain.css", PACKAGE), body, script, data, language)
    return Page(html, (f"{len(html) / 10**6:.2f} MB", *map(str, told)))


def start(picture: Picture) -> int:
    """The token that is asked first: the one that the model reads its answer from, or else the patch in the middle."""
    layout = picture.layout
    if picture.read == "readFirst" and layout.prefix:
        return 0
    return layout.find_token((layout.grid[0] // 2, layout.grid[1] // 2))


def sizes(layers: Sequence[Layer]) -> Sentence:
    """What the weights take, and how exact they are."""
    heads = sum(one.packed.heads for one in layers)
    size = sum(len(one.packed.content) for one in layers) / 10**3
    error = max(one.packed.error for one in layers)
    # Rounded up: what is stated holds.
    bound = math.ceil(error * 10**5) / 10**5
    return Sentence("noteSizes", {"layers": len(layers), "heads": heads, "size": size, "bound": bound}, PACKAGE)


def printable(text: str) -> str:
    """Bytes of a file's name that are no UTF-8 become question marks."""
    return text.encode(errors="replace").decode()
