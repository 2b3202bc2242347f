"""What a page about one photo is made of: the weights that fit, the answers without each head, statistics over data.

B batch, C channels, H heads (H W pixels of an image), Q queries, S keys.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor

from vitkit.bundle.bundle import Bundle
from vitkit.data.annotations.labels import LABELS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.batches import Reading
from vitkit.data.order import FOLDS
from vitkit.data.preprocess import read
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import COLUMNS
from vitkit.interpret.examine.attention_maps import get_layer_name
from vitkit.interpret.examine.head_survey import ImageSample, measure_heads
from vitkit.interpret.examine.image_model import AttentionModel, open_attention_model
from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.maps.rollout import find_pooled_rows
from vitkit.interpret.measure.flags import flag_statistics
from vitkit.interpret.see.capture import capture, parse_bytes
from vitkit.interpret.see.layers import select_layers
from vitkit.pages.explain import answers
from vitkit.pages.explain.content import PACKAGE, Layer, OverData, Picture, page
from vitkit.pages.explain.packing import pack_attention
from vitkit.pages.explain.removal import without_each_head
from vitkit.pages.page import Page, called
from vitkit.support.devices import get_device
from vitkit.support.progress import make_progress_bar
from vitkit.support.texts import ENGLISH, Sentence, read_texts

PICTURES = 64


class Kept(NamedTuple):
    """Layers first to last, and a sentence for each that is not among them."""

    layers: list[Layer]
    notes: list[Sentence]


class StatisticsSource(NamedTuple):
    """Pictures to take statistics over: so many of them. Labels are needed only to know what a fold holds out."""

    source: str
    pictures: int = PICTURES
    fold: int | None = None
    folds: int = FOLDS
    columns: tuple[str, str] = COLUMNS


def kept_layers(
    examined: AttentionModel, image: Float[Tensor, "1 C H W"], patterns: Sequence[str | int], most: int
) -> Kept:
    """From the last on, until the page is full; one layer's weights are held at a time."""
    named = [get_layer_name(examined, one) if isinstance(one, int) else one for one in patterns]
    names = [name for name in select_layers(examined.model, named) if name in examined.layers]
    if not names:
        raise ValueError(f"layers must name some of {', '.join(examined.layers)}, got {', '.join(map(str, patterns))}")
    kept: list[Layer] = []
    notes: list[Sentence] = []
    held = 0
    for name in reversed(names):
        with capture(examined.model, name) as seen, torch.inference_mode():
            examined.run(image)
        weights = seen[name].weights[0]
        if weights.shape[1:] != (examined.layout.num_tokens,) * 2:
            notes.append(left_out(name, weights, examined.layout))
            continue
        layer = Layer(examined.layers.index(name), name, pack_attention(weights, len(examined.layout.prefix)))
        held += len(layer.packed.content)
        if held > most:
            notes.append(too_many(layer, names, kept, most))
            break
        kept.insert(0, layer)
    if not kept:
        raise ValueError(f"layers must attend from all tokens to all, got none: {'; '.join(map(str, notes))}")
    return Kept(kept, notes)


def read_from(examined: AttentionModel) -> str:
    """Which text of the page says where the model's answer comes from; "" where that is not known."""
    try:
        rows = find_pooled_rows(examined.model)
    except ValueError:
        return ""
    if rows is None:
        return "readPool"
    return {(0, 1): "readFirst", (len(examined.layout.prefix), None): "readMean"}.get((rows.start, rows.stop), "")


def left_out(name: str, weights: Float[Tensor, "H Q S"], layout: Layout) -> Sentence:
    _, Q, S = weights.shape
    return Sentence("noteLeftOut", {"layer": name, "queries": Q, "keys": S, "tokens": layout.num_tokens}, PACKAGE)


def too_many(layer: Layer, names: Sequence[str], kept: Sequence[Layer], most: int) -> Sentence:
    """Raises: ValueError if not even one layer fits."""
    size, most_kb = len(layer.packed.content) / 10**3, f"{most / 10**3:,g} kB"
    if not kept:
        raise ValueError(f"budget must hold one layer at least, got {most_kb} for {size:,.0f} kB; raise it")
    text = "noteTooMany" if len(kept) > 1 else "noteTooManyButOne"
    ends = {"first": kept[0].place, "last": kept[-1].place, "layers": len(names)}
    return Sentence(text, {**ends, "size": size, "most": most_kb}, PACKAGE)


def answered(examined: AttentionModel, image: Float[Tensor, "1 C H W"], layers: Sequence[Layer]) -> dict[str, Any]:
    """What the model says as it is, and without each head of these layers."""
    with torch.inference_mode():
        whole = examined.run(image)[0].float().cpu()
    removed = []
    with make_progress_bar(sum(layer.packed.heads for layer in layers), "remove heads", " heads") as progress:
        for layer in layers:
            heads = layer.packed.heads
            removed.append(without_each_head(examined.model, examined.run, image, layer.name, heads))
            progress.update(heads)
    if not all(numbers.isfinite().all() for numbers in (whole, *removed)):
        raise ValueError("model must give finite numbers, got others for the picture")
    if examined.bundle.class_names:
        return answers.of_classes(whole, removed, examined.bundle.class_names, examined.bundle.multilabel)
    return answers.of_vectors(whole, removed)


def over_data(examined: AttentionModel, data: StatisticsSource, drawn: ImageSample) -> OverData:
    found = measure_heads(examined, drawn, "statistics")
    for line in drawn.unreadable:
        print(f"error: {line}", file=sys.stderr)
    return OverData(found, flag_statistics(found), called(data.source), examined.layers)


def drawn_from(data: StatisticsSource, reading: Reading) -> ImageSample:
    """The same pictures at each call, and the same as `vitkit heads` takes. Raises: ValueError."""
    annotation = UNLABELLED if data.fold is None else LABELS
    return ImageSample.draw(
        open_source(data.source, annotation, data.columns), data.pictures, data.fold, data.folds, reading
    )


BUDGET = "25MB"  # what a mail takes, and a browser opens at once


def explain(
    model: str | Path | Bundle | AttentionModel,
    photo: str | Path | Image.Image,
    *,
    classes: Sequence[str] = (),
    layers: Sequence[str | int] = (),
    data: str | StatisticsSource | None = None,
    budget: int | float | str = BUDGET,
    reading: Reading | None = None,
    language: str = ENGLISH,
) -> Page:
    """A page that shows where each head looks from each patch, and what the model says without it.

        vitkit.explain("runs/classify_digits/model", "seven.png").save("seven.html")

    In a notebook the page is shown as it is.

    Args:
        model: a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, or one that is open already.
        classes: what a CLIP is to tell apart, in words.
        photo: a file, or a picture as it was opened.
        layers: names as in `interpret.see.layers.select_layers`, or places among those that make the picture's vector;
            none means all.
        data: pictures for statistics, named as for training; a folder may be of any kind, unless a fold is asked.
        budget: bytes of the weights in the page; of more the last layers are kept.
        reading: device, and how the pictures of `data` are read.
        language: of what the page says.

    Raises: ValueError, one line, also for a model whose tokens are not known.
    """
    reading = reading or Reading()
    reading.check()
    read_texts(language, PACKAGE)
    most = parse_bytes(budget)
    data = StatisticsSource(data) if isinstance(data, str) else data
    drawn = None if data is None else drawn_from(data, reading)
    if not isinstance(photo, Image.Image) and Path(photo).is_dir():
        raise ValueError(f"photo must be one picture, got the folder {photo}; vitkit attend takes folders")
    picture = ImageOps.exif_transpose(photo) if isinstance(photo, Image.Image) else read(photo)
    examined = model if isinstance(model, AttentionModel) else open_attention_model(model, classes)
    examined.bundle.model.to(get_device(reading.device))
    shown = Picture(picture, named(photo), examined.preprocess, examined.layout, read_from(examined))
    weight = next(examined.model.parameters())
    image = examined.preprocess(picture)[None].to(weight)
    kept = kept_layers(examined, image, layers, most)
    told = answered(examined, image, kept.layers)
    over = None if data is None or drawn is None else over_data(examined, data, drawn)
    return page(called(examined.bundle.source), shown, kept.layers, told, over, kept.notes, language)


def named(photo: str | Path | Image.Image) -> str:
    return "a picture" if isinstance(photo, Image.Image) else Path(photo).name
