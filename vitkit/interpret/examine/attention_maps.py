"""What a model looks at in one image: attention as it is, rolled out, or what speaks for a class or a text.

C channels, H heads (in rows: those that are asked for), T tokens, S tokens of a text, K outputs.
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
from vitkit.models.parts import get_inputs, pair_model

Query = str | tuple[int, int]


class Asked(NamedTuple):
    """Args:
    layers, heads: of attention as it is, places from either end or names; places. None means all heads.
    query: whose row is read, a prefix token's name or the (row, column) of a patch; None for that which is pooled.
    target: the class that relevance is for, None for the likeliest.
    start: the first layer that counts in rollout and relevance.
    """

    layers: Sequence[int | str] = (-1,)
    heads: Sequence[int] | None = None
    query: Query | None = None
    target: str | None = None
    start: int | None = None


class Words(NamedTuple):
    """The tokens of a text, and a number for each; `layer` says which of the text tower were put together."""

    layer: str
    tokens: tuple[str, ...]
    weights: Float[Tensor, " S"]


class Looked(NamedTuple):
    """A row for each head, named by its place; one row without a place where heads are put together.

    Args:
        layer: its name, or which layers were put together.
        unit: what the numbers are.
        target: what speaks for it, if that was asked. words: of it, if it is a text.
    """

    layer: str
    heads: tuple[int, ...]
    rows: Float[Tensor, "H T"]
    unit: str
    target: str | None = None
    words: Words | None = None


class Found(NamedTuple):
    """The outputs for one image, and what was looked at."""

    outputs: Float[Tensor, " K"]
    looked: tuple[Looked, ...]


Look = Callable[[AttentionModel, Float[Tensor, "1 C H W"], Asked], Found]


def raw(examined: AttentionModel, images: Float[Tensor, "1 C H W"], asked: Asked) -> Found:
    """The attention of layers as it is, for each head."""
    if asked.target is not None or asked.start is not None:
        raise ValueError(f"class and start are for other maps, got class={asked.target}, start={asked.start}")
    rows = tokens_read(examined, asked.query)
    names = [name if isinstance(name, str) else placed(examined, name) for name in asked.layers]
    refuse_query(examined, asked.query, select_layers(examined.model, names))
    with torch.inference_mode(), capture(examined.model, *names, heads=asked.heads, queries=rows) as seen:
        outputs = examined.run(images)
    looked: list[Looked] = []
    for name, layer in seen.items():
        _, H, Q, _ = layer.weights.shape
        if rows is None and Q > 1:
            raise ValueError(
                f"query must be given for {name}: the model is read by a pool that attends, not from a row"
            )
        heads = tuple(range(H)) if asked.heads is None else tuple(asked.heads)
        looked.append(Looked(name, heads, layer.weights[0].mean(1), "share of attention"))
    return Found(outputs[0], tuple(looked))


def rolled(examined: AttentionModel, images: Float[Tensor, "1 C H W"], asked: Asked) -> Found:
    """Attention added up over the layers (rollout)."""
    from vitkit.interpret.maps.rollout import rollout

    if asked.target is not None:
        raise ValueError(f"class is for relevance, got class={asked.target}")
    together(asked)
    start = asked.start or 0
    refuse_query(examined, asked.query, examined.layers)
    with torch.inference_mode(), capture(examined.model, *examined.layers) as seen:
        outputs = examined.run(images)
    found = rollout([layer.weights for layer in seen.values()], start=start)
    row = row_read(examined, found, asked.query)
    return Found(
        outputs[0],
        (Looked(counted("rollout", len(examined.layers), start), (), row, "share of attention, rolled out"),),
    )


def relevant(examined: AttentionModel, images: Float[Tensor, "1 C H W"], asked: Asked) -> Found:
    """Gradient x attention: what speaks for a class; of a CLIP for each of its texts.

    It is what the layers add to I, by which a token is relevant to itself, more than to any other.
    """
    from vitkit.interpret.maps.relevance import relevance, subtract_identity

    together(asked)
    if not examined.bundle.class_names:
        raise ValueError(
            f"model must have classes for relevance, got none in {examined.bundle.source}; take another map"
        )
    with torch.inference_mode():
        outputs = examined.run(images)
    if "texts" in get_inputs(examined.bundle.model):
        return Found(outputs[0], tuple(spoken(examined, images, asked)))
    refuse_query(examined, asked.query, examined.layers)
    place = outputs[0].argmax().item() if asked.target is None else class_of(examined, asked.target)
    start = asked.start or 0
    targets = torch.tensor([place])
    found = relevance(examined.model, examined.run, images, targets, examined.layers, start=start)
    row = row_read(examined, subtract_identity(found), asked.query)
    title = counted("relevance", len(examined.layers), start)
    return Found(outputs[0], (Looked(title, (), row, "relevance", examined.bundle.class_names[int(place)]),))


def spoken(examined: AttentionModel, images: Float[Tensor, "1 C H W"], asked: Asked) -> list[Looked]:
    """For each text, or for that which is the target."""
    from vitkit.interpret.draw.word_strip import words_of
    from vitkit.interpret.maps.relevance import text_relevance

    if asked.query is not None:
        raise ValueError("query must be left out for relevance to texts, which is that of what the model pools")
    start = -1 if asked.start is None else asked.start
    bundle = examined.bundle
    clip, tokenizer, texts = pair_model(bundle.model), get_tokenizer(bundle), bundle.class_names
    layers = find_attention_layers(clip.text)
    looked: list[Looked] = []
    for text in texts if asked.target is None else [texts[class_of(examined, asked.target)]]:
        (row,), _ = tokenizer.rows([text])
        found = text_relevance(clip, images, tokenizer([text]), start=start)
        of_words = counted("relevance", len(layers), start)
        words = Words(of_words, tuple(words_of(tokenizer, row)), found.text[0, : len(row)])
        title = counted("relevance", len(examined.layers), start)
        looked.append(Looked(title, (), found.image, "relevance", text, words))
    return looked


def with_texts(bundle: Bundle, texts: Sequence[str]) -> AttentionModel:
    """Return a CLIP whose outputs are the logits of an image with these texts, word by word as they are."""
    if repeated := sorted({text for text in texts if list(texts).count(text) > 1}):
        raise ValueError(f"texts must differ, got {repeated[0]!r} twice")
    clip = pair_model(open_pair_model(bundle).model)
    with torch.inference_mode():
        known = clip.encode_text(get_tokenizer(bundle)(texts))

    def run(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        image, text, scale, bias = clip.pair(clip.encode_image(images), known)
        return image @ text.T * scale + bias

    bundle = bundle._replace(class_names=tuple(texts), multilabel=clip.bias is not None)
    return AttentionModel(bundle, run, tuple(find_attention_layers(clip.image)))


def together(asked: Asked) -> None:
    if tuple(asked.layers) != (-1,) or asked.heads is not None:
        raise ValueError(
            "layers and heads are for attention as it is; this map puts all of them together from start on, "
            f"got layers={list(asked.layers)}, heads={asked.heads}"
        )


def counted(what: str, depth: int, start: int) -> str:
    first, last = start % depth, depth - 1
    return f"{what} of layer {last}" if first == last else f"{what} of layers {first} to {last}"


def placed(examined: AttentionModel, place: int) -> str:
    count = len(examined.layers)
    if not -count <= place < count:
        raise ValueError(f"layers must be from {-count} to {count - 1}, got {place}")
    return examined.layers[place]


def class_of(examined: AttentionModel, name: str) -> int:
    class_names = examined.bundle.class_names
    if name not in class_names:
        known = ", ".join(class_names[:5]) + (", ..." if len(class_names) > 5 else "")
        raise ValueError(f"class must be one of {len(class_names)} ({known}), got {name}")
    return class_names.index(name)


def refuse_query(examined: AttentionModel, query: Query | None, layers: Collection[str]) -> None:
    """Raises: ValueError for a query where a pool that attends, the last of all layers, is among these."""
    from vitkit.interpret.maps.rollout import find_pooled_rows

    pool = examined.layers[-1]
    if query is None or pool not in layers:
        return
    try:
        attends = find_pooled_rows(examined.model) is None
    except ValueError:  # it is not known how the model pools
        attends = False
    if attends:
        raise ValueError(f"query must be left out where {pool} is read, a pool that has its own, got query={query}")


def tokens_read(examined: AttentionModel, query: Query | None) -> list[int] | None:
    """Whose rows are read, and their mean taken; None for the one row of a pool that attends."""
    from vitkit.interpret.maps.rollout import find_pooled_rows

    layout = examined.layout
    if query is not None:
        return [layout.find_token(query)]
    try:
        rows = find_pooled_rows(examined.model)
    except ValueError as error:
        raise ValueError(f"{error}; give the query whose row is read, such as cls") from None
    return None if rows is None else [*range(layout.num_tokens)[rows]]


def row_read(examined: AttentionModel, maps: Float[Tensor, "1 Q T"], query: Query | None) -> Float[Tensor, "1 T"]:
    from vitkit.interpret.maps.rollout import select_pooled_row

    rows = tokens_read(examined, query)
    return select_pooled_row(examined.model, maps) if query is None or rows is None else maps[:, rows].mean(1)
