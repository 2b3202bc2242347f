"""Put together the page that explains a model on one image.

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
from vitkit.pages.assemble import assemble_page
from vitkit.pages.explain.data_statistics import describe_statistics
from vitkit.pages.explain.packing import PackedAttention
from vitkit.pages.explain.photo import render_photo
from vitkit.pages.page import Page
from vitkit.support.texts import ENGLISH, Sentence, read_asset, read_texts

PACKAGE = "vitkit.pages.explain"  # where the texts and scripts of this page are
SCRIPTS = ("decode.js", "photo.js", "weights.js", "answers.js", "data_statistics.js", "explain.js")


class Layer(NamedTuple):
    """The packed attention of a layer. Args: place: the layer's index in the model, from 0."""

    place: int
    name: str
    packed: PackedAttention


class Picture(NamedTuple):
    """A photo, its name, and how the model sees it.

    Args: readout: the name of the text that says which tokens the model reads out; "" where that is not known.
    """

    photo: Image.Image
    name: str
    preprocess: Preprocess
    layout: Layout
    readout: str = ""


class DataStatistics(NamedTuple):
    """Statistics over images. Args: source: where the images come from; layers: all layers of the model."""

    statistics: Statistics
    flags: Sequence[Sentence]
    source: str
    layers: Sequence[str]


def build_page(
    model: str,
    picture: Picture,
    layers: Sequence[Layer],
    answers: dict[str, Any],
    data_statistics: DataStatistics | None = None,
    notes: Sequence[Sentence] = (),
    language: str = ENGLISH,
) -> Page:
    """Return the page of a model and an image.

    Args: answers: of `compare_classes` or `compare_embeddings`; notes: what is left out, and why.

    Raises: ValueError for a language without texts.
    """
    layout = picture.layout
    texts = read_texts(language, PACKAGE) | read_texts(language, FLAGS)
    page_notes = [note.format(texts) for note in (describe_size(layers), *notes)]
    data = {
        "texts": texts,
        "model": replace_invalid_bytes(model),
        "photo": replace_invalid_bytes(picture.name),
        "picture": render_photo(picture.photo, picture.preprocess, layout),
        "grid": layout.grid,
        "patch": layout.patch,
        "prefix": layout.prefix,
        "tokens": layout.num_tokens,
        "start": choose_first_query(picture),
        "readout": picture.readout,
        "layers": [
            {"place": layer.place, "name": layer.name, "heads": layer.packed.heads, "content": layer.packed.content}
            for layer in layers
        ],
        "answers": answers,
        "statistics": None if data_statistics is None else describe_statistics(*data_statistics, texts),
        "notes": page_notes,
    }
    title = texts["pageTitle"].format(model=model, photo=picture.name)
    body = read_asset("explain.html", PACKAGE).replace("{{noscript}}", escape(texts["noscript"]))
    script = "\n".join(read_asset(name, PACKAGE) for name in SCRIPTS)
    html = assemble_page(title, read_asset("explain.css", PACKAGE), body, script, data, texts["lang"])
    return Page(html, (texts["noteFile"].format(size=len(html) / 10**6), *page_notes))


def choose_first_query(picture: Picture) -> int:
    """Return the first prefix token if the model reads it out, else the patch in the middle."""
    layout = picture.layout
    if picture.readout == "readFirst" and layout.prefix:
        return 0
    return layout.find_token((layout.grid[0] // 2, layout.grid[1] // 2))


def describe_size(layers: Sequence[Layer]) -> Sentence:
    """Return the size and the precision of the packed attention weights."""
    heads = sum(layer.packed.heads for layer in layers)
    size = sum(len(layer.packed.content) for layer in layers) / 10**3
    error = max(layer.packed.error for layer in layers)
    bound = math.ceil(error * 10**5) / 10**5  # rounded up, so that no error exceeds it
    return Sentence("noteSizes", {"layers": len(layers), "heads": heads, "size": size, "bound": bound}, PACKAGE)


def replace_invalid_bytes(text: str) -> str:
    """Return the text with question marks for bytes of a file's name that are no UTF-8."""
    return text.encode(errors="replace").decode()
