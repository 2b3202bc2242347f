"""Explain a model on one photo: attention weights, outputs without each head, statistics over data.

B batch, C channels, H heads (H W pixels of an image), Q queries, S keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.record_file import read_record
from vitkit.data.annotations.labels import LABELS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.batches import Reading, warn_of_tiny_images
from vitkit.data.omissions import Omissions
from vitkit.data.order import FOLDS
from vitkit.data.preprocess import read_image
from vitkit.data.sample_record import SampleRecord
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
from vitkit.pages.explain.content import PACKAGE, DataStatistics, Layer, Picture, build_page
from vitkit.pages.explain.packing import pack_attention
from vitkit.pages.explain.removal import remove_heads
from vitkit.pages.page import Page, shorten_path
from vitkit.support.devices import get_device
from vitkit.support.progress import make_progress_bar
from vitkit.support.texts import ENGLISH, Sentence, read_texts

PICTURES = 64


class PackedLayers(NamedTuple):
    """Layers first to last, and a sentence for each that is left out."""

    layers: list[Layer]
    notes: list[Sentence]


class StatisticsSource(NamedTuple):
    """A source of images for statistics: `pictures` of them. Labels are needed only to split the folds."""

    source: str
    pictures: int = PICTURES
    fold: int | None = None
    folds: int = FOLDS
    columns: tuple[str, str] = COLUMNS


def pack_layers(
    model: AttentionModel, image: Float[Tensor, "1 C H W"], patterns: Sequence[str | int], budget: int
) -> PackedLayers:
    """Pack the attention of layers, last first, up to `budget` bytes; one layer's weights are in memory at a time.

    Raises: ValueError if no layer matches, fits, or attends from all tokens to all.
    """
    names_or_patterns = [
        get_layer_name(model, pattern) if isinstance(pattern, int) else pattern for pattern in patterns
    ]
    names = [name for name in select_layers(model.model, names_or_patterns) if name in model.layers]
    if not names:
        raise ValueError(f"layers must name some of {', '.join(model.layers)}, got {', '.join(map(str, patterns))}")
    layers: list[Layer] = []
    notes: list[Sentence] = []
    size = 0
    for name in reversed(names):
        with capture(model.model, name) as attention, torch.inference_mode():
            model.run(image)
        weights = attention[name].weights[0]
        if weights.shape[1:] != (model.layout.num_tokens,) * 2:
            notes.append(describe_omitted(name, weights, model.layout))
            continue
        layer = Layer(model.layers.index(name), name, pack_attention(weights, len(model.layout.prefix)))
        size += len(layer.packed.content)
        if size > budget:
            notes.append(describe_budget(layer, names, layers, budget))
            break
        layers.insert(0, layer)
    if not layers:
        raise ValueError(f"layers must attend from all tokens to all, got none: {'; '.join(map(str, notes))}")
    return PackedLayers(layers, notes)


def find_readout(model: AttentionModel) -> str:
    """Return the name of the text that says which tokens the model reads out; "" where that is not known."""
    try:
        rows = find_pooled_rows(model.model)
    except ValueError:
        return ""
    if rows is None:
        return "readPool"
    return {(0, 1): "readFirst", (len(model.layout.prefix), None): "readMean"}.get((rows.start, rows.stop), "")


def describe_omitted(name: str, weights: Float[Tensor, "H Q S"], layout: Layout) -> Sentence:
    _, Q, S = weights.shape
    return Sentence("noteLeftOut", {"layer": name, "queries": Q, "keys": S, "tokens": layout.num_tokens}, PACKAGE)


def describe_budget(layer: Layer, names: Sequence[str], kept: Sequence[Layer], budget: int) -> Sentence:
    """Return the sentence on layers that exceed the budget. Raises: ValueError if not even one layer fits."""
    size, budget_kb = len(layer.packed.content) / 10**3, f"{budget / 10**3:,g} kB"
    if not kept:
        raise ValueError(f"budget must hold one layer at least, got {budget_kb} for {size:,.0f} kB; raise it")
    text = "noteTooMany" if len(kept) > 1 else "noteTooManyButOne"
    ends = {"first": kept[0].place, "last": kept[-1].place, "layers": len(names)}
    return Sentence(text, {**ends, "size": size, "most": budget_kb}, PACKAGE)


def compute_answers(
    model: AttentionModel, image: Float[Tensor, "1 C H W"], layers: Sequence[Layer], title: str
) -> dict[str, Any]:
    """Compare the model's output with its outputs without each head of these layers. Args: title: of the progress."""
    with torch.inference_mode():
        output = model.run(image)[0].float().cpu()
    ablated = []
    with make_progress_bar(sum(layer.packed.heads for layer in layers), title, "") as progress:
        for layer in layers:
            heads = layer.packed.heads
            ablated.append(remove_heads(model.model, model.run, image, layer.name, heads))
            progress.update(heads)
    if not all(x.isfinite().all() for x in (output, *ablated)):
        raise ValueError("model must give finite numbers, got others for the picture")
    if model.bundle.class_names:
        return answers.compare_classes(output, ablated, model.bundle.class_names, model.bundle.multilabel)
    return answers.compare_embeddings(output, ablated)


def compute_statistics(
    model: AttentionModel, data: StatisticsSource, sample: ImageSample, texts: Mapping[str, str]
) -> DataStatistics:
    """Measure the heads over the drawn images."""
    statistics = measure_heads(model, sample, texts["progressStatistics"])
    return DataStatistics(statistics, flag_statistics(statistics), shorten_path(data.source), model.layers)


def draw_image_sample(data: StatisticsSource, reading: Reading, record: SampleRecord | None = None) -> ImageSample:
    """Draw the same images at each call, and the same as `vitkit heads`. Raises: ValueError."""
    annotation = UNLABELLED if data.fold is None else LABELS
    source = open_source(data.source, annotation, data.columns, reading.exclude)
    return ImageSample.draw(source, data.pictures, data.fold, data.folds, reading, record)


BUDGET = "25MB"  # fits into a mail, and a browser opens it at once


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
    """Return a page with the attention map of each head from each patch, and the model's output without each head.

        vitkit.explain("runs/classify_digits/model", "seven.png").save("seven.html")

    A notebook shows the page as the result of a cell.

    Args:
        model: a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, or an open model.
        classes: class names in words, for a CLIP.
        photo: a file, or an open image.
        layers: names as in `interpret.see.layers.select_layers`, or indices among the layers that make the image's
            embedding; none means all.
        data: images for statistics, a source as for training; a folder may be of any kind, unless a fold is given.
        budget: bytes of the attention weights in the page; above it the last layers are kept.
        reading: device, and how the images of `data` are read.
        language: of the page and its notes: en, or zh for Simplified Chinese.

    Raises: ValueError, one line, also for a model whose tokens are not known.
    """
    reading = reading or Reading()
    reading.check()
    texts = read_texts(language, PACKAGE)
    max_bytes = parse_bytes(budget)
    data = StatisticsSource(data) if isinstance(data, str) else data
    if not isinstance(photo, Image.Image) and Path(photo).is_dir():
        raise ValueError(f"photo must be one picture, got the folder {photo}; vitkit attend takes folders")
    opened = ImageOps.exif_transpose(photo) if isinstance(photo, Image.Image) else read_image(photo)
    name = texts["photoWithoutName"] if isinstance(photo, Image.Image) else Path(photo).name
    attention_model = model if isinstance(model, AttentionModel) else open_attention_model(model, classes)
    warn_of_tiny_images([name] if attention_model.preprocess.is_tiny(opened) else [], 1, attention_model.preprocess)
    record = read_record(attention_model.bundle.source)
    drawn = None if data is None else draw_image_sample(data, reading, record)
    attention_model.bundle.model.to(get_device(reading.device))
    picture = Picture(opened, name, attention_model.preprocess, attention_model.layout, find_readout(attention_model))
    image = attention_model.preprocess(opened)[None].to(next(attention_model.model.parameters()))
    packed = pack_layers(attention_model, image, layers, max_bytes)
    outputs = compute_answers(attention_model, image, packed.layers, texts["progressHeads"])
    statistics = None if data is None or drawn is None else compute_statistics(attention_model, data, drawn, texts)
    source = shorten_path(attention_model.bundle.source)
    page = build_page(source, picture, packed.layers, outputs, statistics, packed.notes, language)
    if drawn is None:
        return page
    omissions = Omissions()
    omissions.update(drawn.source.omissions)
    omissions.unreadable += drawn.unreadable
    return replace(page, omissions=omissions, samples=len(drawn.indices))
