"""Attention maps of one image: raw attention, rollout, or relevance for a class or a text.

C channels, H heads (as rows: the selected ones), T tokens, S tokens of a text, K outputs.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_tokenizer
from vitkit.convert.open import open_pair_model
from vitkit.interpret.examine.image_model import AttentionModel
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.layers import find_attention_layers, select_layers
from vitkit.models.parts import get_inputs, require_pair_model

Query = str | tuple[int, int]


class MapOptions(NamedTuple):
    """Args:
    layers, heads: of raw attention; layers by index, negative from the end, or by name. None means all heads.
    query: name of a prefix token, or (row, column) of a patch; None for what the model pools.
    target: class of the relevance, None for the most likely.
    start: first layer of rollout and relevance.
    """

    layers: Sequence[int | str] = (-1,)
    heads: Sequence[int] | None = None
    query: Query | None = None
    target: str | None = None
    start: int | None = None


class TextMap(NamedTuple):
    """Weights of a text's tokens; `layer` describes the layers of the text tower that were combined."""

    layer: str
    tokens: tuple[str, ...]
    weights: Float[Tensor, " S"]


class AttentionMap(NamedTuple):
    """A row for each head, or a single row without a head for maps that combine all heads.

    Args:
        layer: its name, or a description of the layers that were combined.
        unit: of the values.
        target: class or text of a relevance. text: weights of its tokens, if it is a text.
    """

    layer: str
    heads: tuple[int, ...]
    rows: Float[Tensor, "H T"]
    unit: str
    target: str | None = None
    text: TextMap | None = None


class MapResult(NamedTuple):
    """The model's outputs for one image, and the maps."""

    outputs: Float[Tensor, " K"]
    maps: tuple[AttentionMap, ...]


MapMethod = Callable[[AttentionModel, Float[Tensor, "1 C H W"], MapOptions], MapResult]


def map_attention(model: AttentionModel, images: Float[Tensor, "1 C H W"], options: MapOptions) -> MapResult:
    """Return the raw attention of layers, head by head."""
    if options.target is not None or options.start is not None:
        raise ValueError(
            f"class and start must be left out for raw attention, got class={options.target}, start={options.start}"
        )
    queries = find_query_tokens(model, options.query)
    names = [name if isinstance(name, str) else get_layer_name(model, name) for name in options.layers]
    refuse_query(model, options.query, select_layers(model.model, names))
    with torch.inference_mode(), capture(model.model, *names, heads=options.heads, queries=queries) as attention:
        outputs = model.run(images)
    maps: list[AttentionMap] = []
    for name, layer in attention.items():
        _, H, Q, _ = layer.weights.shape
        if queries is None and Q > 1:
            raise ValueError(f"query must be given for {name}: the model has an attention pool, and no token is pooled")
        heads = tuple(range(H)) if options.heads is None else tuple(options.heads)
        maps.append(AttentionMap(name, heads, layer.weights[0].mean(1), "share of attention"))
    return MapResult(outputs[0], tuple(maps))


def map_rollout(model: AttentionModel, images: Float[Tensor, "1 C H W"], options: MapOptions) -> MapResult:
    """Return the attention rollout over the layers."""
    from vitkit.interpret.maps.rollout import rollout

    if options.target is not None:
        raise ValueError(f"class must be left out but for relevance, got class={options.target}")
    refuse_layer_choice(options)
    start = options.start or 0
    refuse_query(model, options.query, model.layers)
    with torch.inference_mode(), capture(model.model, *model.layers) as attention:
        outputs = model.run(images)
    result = rollout([layer.weights for layer in attention.values()], start=start)
    row = select_query_row(model, result, options.query)
    title = format_layers("rollout", len(model.layers), start)
    return MapResult(outputs[0], (AttentionMap(title, (), row, "share of attention, rolled out"),))


def map_relevance(model: AttentionModel, images: Float[Tensor, "1 C H W"], options: MapOptions) -> MapResult:
    """Return gradient x attention relevance for a class; of a CLIP, for each of its texts.

    The identity from which relevance starts is subtracted: a token's relevance to itself would outshine all others.
    """
    from vitkit.interpret.maps.relevance import relevance, subtract_identity

    refuse_layer_choice(options)
    if not model.bundle.class_names:
        raise ValueError(f"model must have classes for relevance, got none in {model.bundle.source}; use another map")
    with torch.inference_mode():
        outputs = model.run(images)
    if "texts" in get_inputs(model.bundle.model):
        return MapResult(outputs[0], tuple(map_text_relevance(model, images, options)))
    refuse_query(model, options.query, model.layers)
    index = outputs[0].argmax().item() if options.target is None else find_class(model, options.target)
    start = options.start or 0
    result = relevance(model.model, model.run, images, torch.tensor([index]), model.layers, start=start)
    row = select_query_row(model, subtract_identity(result), options.query)
    title = format_layers("relevance", len(model.layers), start)
    return MapResult(outputs[0], (AttentionMap(title, (), row, "relevance", model.bundle.class_names[int(index)]),))


def map_text_relevance(
    model: AttentionModel, images: Float[Tensor, "1 C H W"], options: MapOptions
) -> list[AttentionMap]:
    """Return the relevance for each text, or for the target alone."""
    from vitkit.interpret.draw.word_strip import spell_tokens
    from vitkit.interpret.maps.relevance import text_relevance

    if options.query is not None:
        raise ValueError(f"query must be left out for relevance to texts, got query={options.query}")
    start = -1 if options.start is None else options.start
    bundle = model.bundle
    clip, tokenizer, texts = require_pair_model(bundle.model), get_tokenizer(bundle), bundle.class_names
    title = format_layers("relevance", len(model.layers), start)
    text_title = format_layers("relevance", len(find_attention_layers(clip.text)), start)
    maps: list[AttentionMap] = []
    for text in texts if options.target is None else [texts[find_class(model, options.target)]]:
        (ids,), _ = tokenizer.encode_and_cut([text])
        result = text_relevance(clip, images, tokenizer([text]), start=start)
        text_map = TextMap(text_title, tuple(spell_tokens(tokenizer, ids)), result.text[0, : len(ids)])
        maps.append(AttentionMap(title, (), result.image, "relevance", text, text_map))
    return maps


def make_text_model(bundle: Bundle, texts: Sequence[str]) -> AttentionModel:
    """Return a CLIP whose outputs are the logits of an image with these texts, used literally."""
    if repeated := sorted({text for text in texts if list(texts).count(text) > 1}):
        raise ValueError(f"texts must differ, got {repeated[0]!r} twice")
    clip = require_pair_model(open_pair_model(bundle).model)
    get_tokenizer(bundle).check_words(texts)
    with torch.inference_mode():
        embeddings = clip.encode_text(get_tokenizer(bundle)(texts))

    def run(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        image, text, scale, bias = clip.make_pair(clip.encode_image(images), embeddings)
        return image @ text.T * scale + bias

    bundle = bundle._replace(class_names=tuple(texts), multilabel=clip.bias is not None)
    return AttentionModel(bundle, run, tuple(find_attention_layers(clip.image)))


def refuse_layer_choice(options: MapOptions) -> None:
    """Raise a ValueError for layers or heads where a map combines all of them."""
    if tuple(options.layers) != (-1,) or options.heads is not None:
        raise ValueError(
            "layers and heads must be left out but for raw attention: this map combines all of them from start on, "
            f"got layers={list(options.layers)}, heads={options.heads}"
        )


def format_layers(title: str, depth: int, start: int) -> str:
    first, last = start % depth, depth - 1
    return f"{title} of layer {last}" if first == last else f"{title} of layers {first} to {last}"


def get_layer_name(model: AttentionModel, index: int) -> str:
    count = len(model.layers)
    if not -count <= index < count:
        raise ValueError(f"layers must be from {-count} to {count - 1}, got {index}")
    return model.layers[index]


def find_class(model: AttentionModel, name: str) -> int:
    class_names = model.bundle.class_names
    if name not in class_names:
        known = ", ".join(class_names[:5]) + (", ..." if len(class_names) > 5 else "")
        raise ValueError(f"class must be one of {len(class_names)} ({known}), got {name}")
    return class_names.index(name)


def refuse_query(model: AttentionModel, query: Query | None, layers: Collection[str]) -> None:
    """Raise a ValueError for a query if these layers include an attention pool, the last layer of its model."""
    from vitkit.interpret.maps.rollout import find_pooled_rows

    pool = model.layers[-1]
    if query is None or pool not in layers:
        return
    try:
        attention_pool = find_pooled_rows(model.model) is None
    except ValueError:  # the model's pooling is unknown
        attention_pool = False
    if attention_pool:
        raise ValueError(f"query must be left out for {pool}, an attention pool with its own query, got query={query}")


def find_query_tokens(model: AttentionModel, query: Query | None) -> list[int] | None:
    """Return the tokens whose rows are averaged, by default those that the model pools; None for an attention pool."""
    from vitkit.interpret.maps.rollout import find_pooled_rows

    layout = model.layout
    if query is not None:
        return [layout.find_token(query)]
    try:
        rows = find_pooled_rows(model.model)
    except ValueError as error:
        raise ValueError(f"{error}; give the query, such as cls") from None
    return None if rows is None else [*range(layout.num_tokens)[rows]]


def select_query_row(model: AttentionModel, maps: Float[Tensor, "1 Q T"], query: Query | None) -> Float[Tensor, "1 T"]:
    from vitkit.interpret.maps.rollout import select_pooled_row

    tokens = find_query_tokens(model, query)
    return select_pooled_row(model.model, maps) if query is None or tokens is None else maps[:, tokens].mean(1)
