"""Relevance of tokens to an output: gradient x attention, accumulated over the layers.

B batch, C channels, K outputs, H heads, T tokens, Q queries: T, or 1 if an attention pool comes last; S keys.
https://arxiv.org/abs/2103.15679
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitkit.interpret.maps.rollout import check_chain, is_pooling, resolve_start, select_pooled_row
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.layers import find_attention_layers
from vitkit.models import CLIP
from vitkit.models.parts import get_image_tower, get_text_tower
from vitkit.nn import Attention, EndOfText


class TextRelevance(NamedTuple):
    """Relevance of the tokens of an image and of its text to the logit of the pair, from layer `start` on.

    The identity from which R starts is subtracted: the pooled token's own 1 would outshine all others. Tokens of a text
    after its end have none.
    """

    image: Float[Tensor, "B T"]
    text: Float[Tensor, "B S"]
    start: int


class CrossRelevance(NamedTuple):
    """Relevance of a decoder's tokens to each other, and of its memory's tokens to them."""

    tokens: Float[Tensor, "B T T"]
    memory: Float[Tensor, "B T S"]


def relevance(
    model: nn.Module,
    run: Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B K"]],
    images: Float[Tensor, "B C H W"],
    targets: Int[Tensor, " B"],
    layers: Sequence[str],
    *,
    start: int = 0,
) -> Float[Tensor, "B Q T"]:
    """Compute R <- R + mean_h((dy/dA * A)+) R from R = I over the layers: equations 5 and 6.

    `select_pooled_row` selects the row of the pooled token. The query of an attention pool is another modality than the
    tokens: its row is A R_normalised, equation 10.

    Args:
        model: in evaluation mode; neither it nor the gradients of its parameters are changed.
        run: returns the outputs of this model.
        targets: index of the output to explain, one for each image.
        layers: first to last.
        start: index of the first layer to use, negative from the end.
    """
    layers = layers[resolve_start(start, len(layers)) :]
    products = compute_gradient_attention(model, lambda: run(images), targets, layers)
    return accumulate_relevance(list(products.values()))


def accumulate_relevance(products: Sequence[Float[Tensor, "B _ _ T"]]) -> Float[Tensor, "B Q T"]:
    result = make_batch_identity(products[0])
    for product in check_chain(products):
        mean = average_positive(product)
        result = mean @ normalise_relevance(result) if is_pooling(product) else result + mean @ result
    return result


def compute_gradient_attention(
    model: nn.Module, run: Callable[[], Float[Tensor, "B K"]], targets: Int[Tensor, " B"], layers: Sequence[str]
) -> dict[str, Float[Tensor, "B H Q S"]]:
    """Return the signed dy/dA * A of each head, where y is the target's output, by layer in the order of execution.

    Raises: ValueError for a model in training, a target out of range, a layer on which no output depends.
    """
    if model.training:
        raise ValueError("model must be in evaluation mode, got model.training=True; call model.eval()")
    with torch.enable_grad(), capture(model, *layers, gradient=True) as attention:
        outputs = run()
    if len(targets) != len(outputs) or targets.min() < 0 or targets.max() >= outputs.shape[1]:
        raise ValueError(
            f"targets must be {len(outputs)} numbers from 0 to {outputs.shape[1] - 1}, got {targets.tolist()}"
        )
    weights = [layer.weights for layer in attention.values()]
    if windows := [name for name, layer in attention.items() if len(layer.weights) != len(outputs)]:
        raise ValueError(f"layers must attend over whole images, got windows in {', '.join(windows)}")
    with torch.enable_grad():
        score = outputs.gather(1, targets.long()[:, None].to(outputs.device)).sum()
    gradients = torch.autograd.grad(score, weights, allow_unused=True) if score.requires_grad else [None] * len(weights)
    if unused := [name for name, gradient in zip(attention, gradients, strict=True) if gradient is None]:
        raise ValueError(f"layers must lead to the outputs, got {', '.join(unused)}; does run use this model?")
    pairs = zip(attention, weights, gradients, strict=True)
    return {name: weight.detach() * gradient for name, weight, gradient in pairs if gradient is not None}


def text_relevance(
    clip: CLIP, images: Float[Tensor, "B C H W"], ids: Int[Tensor, "B S"], *, start: int = -1
) -> TextRelevance:
    """Compute the relevance to the logit of each image and its text, in both towers.

    Args: start: index of the first layer to use in either tower. The authors' notebook uses the last alone.
    Raises: ValueError for unequal numbers of images and texts.
    """
    if len(images) != len(ids):
        raise ValueError(f"images and texts must be pairs, got {len(images)} images and {len(ids)} texts")

    def run() -> Float[Tensor, "B 1"]:
        pair = clip(images, ids)
        return ((pair.image * pair.text).sum(1, keepdim=True) * pair.scale) + pair.bias

    towers = ({*tower.modules()} for tower in (get_image_tower(clip), get_text_tower(clip)))
    names = [[name for name, layer in find_attention_layers(clip).items() if layer in modules] for modules in towers]
    image_layers, text_layers = (layers[resolve_start(start, len(layers)) :] for layers in names)
    products = compute_gradient_attention(clip, run, ids.new_zeros(len(ids)), [*image_layers, *text_layers])
    image, text = (
        subtract_identity(accumulate_relevance([products[name] for name in layers]))
        for layers in (image_layers, text_layers)
    )
    pool = clip.text.pool
    end = (ids == pool.end).int().argmax(1) if isinstance(pool, EndOfText) else torch.full_like(ids[:, 0], -1)
    return TextRelevance(select_pooled_row(clip, image), text[torch.arange(len(text)), end], start)


def cross_relevance(
    decoder: nn.Module,
    run: Callable[[], Float[Tensor, "B K"]],
    targets: Int[Tensor, " B"],
    layers: Sequence[str],
    *,
    memory: Float[Tensor, "B S S"] | None = None,
) -> CrossRelevance:
    """Compute the relevance in a decoder with a memory: equations 6 and 7 for self-, 8 to 10 for cross-attention.

    The memory does not attend to the decoder, so that equation 11 adds nothing.

    Args:
        decoder: vitkit's Encoder with `memory_dim`, or a module that contains one, in evaluation mode.
        run: returns its outputs, such as a closure over its inputs.
        layers: its self- and cross-attention layers in the order of execution, at least one cross-attention.
        memory: the `relevance` of the memory's tokens to each other; I without it.
    """
    products = compute_gradient_attention(decoder, run, targets, layers)
    modules = dict(decoder.named_modules())
    cross = {name: isinstance(modules[name], Attention) and modules[name].memory_dim is not None for name in layers}
    if not any(cross.values()):
        raise ValueError(f"layers must hold a cross-attention of vitkit's, got {', '.join(layers)}")
    first = next(product for name, product in products.items() if cross[name])
    tokens = torch.eye(first.shape[2], dtype=first.dtype, device=first.device).expand(len(first), -1, -1)
    across = first.new_zeros(len(first), *first.shape[2:])
    memory = make_batch_identity(first) if memory is None else memory
    for name, product in products.items():
        mean = average_positive(product)
        if cross[name]:
            across = across + normalise_relevance(tokens).mT @ mean @ normalise_relevance(memory)
        else:
            tokens, across = tokens + mean @ tokens, across + mean @ across
    return CrossRelevance(tokens, across)


def input_relevance(
    run: Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B K"]],
    images: Float[Tensor, "B C H W"],
    targets: Int[Tensor, " B"],
    patch: tuple[int, int],
) -> Float[Tensor, "B h w"]:
    """Compute gradient x input summed over each patch: to first order, the change of the target's output without it.

    https://arxiv.org/abs/1605.01713, section 2.
    """
    with torch.enable_grad():
        pixels = images.detach().requires_grad_()
        score = run(pixels).gather(1, targets.long()[:, None].to(pixels.device)).sum()
    (gradient,) = torch.autograd.grad(score, pixels)
    return (gradient * images).sum(1).unflatten(2, (-1, patch[1])).unflatten(1, (-1, patch[0])).sum((2, 4))


def average_positive(product: Float[Tensor, "B H Q S"]) -> Float[Tensor, "B Q S"]:
    """Average the positive part over the heads: equation 5."""
    return product.clamp(min=0).mean(1)


def normalise_relevance(result: Float[Tensor, "B T T"]) -> Float[Tensor, "B T T"]:
    """Normalise the rows of R - I to sum 1 and add I again: equations 8 and 9."""
    change = subtract_identity(result)
    sums = change.sum(-1, keepdim=True)
    return torch.where(sums > 0, change / sums, 0) + make_identity(result)


def subtract_identity(result: Float[Tensor, "B Q T"]) -> Float[Tensor, "B Q T"]:
    """Subtract the I from which R starts; the single row of an attention pool stays."""
    return result - make_identity(result) if result.shape[1] == result.shape[2] else result


def make_batch_identity(product: Float[Tensor, "B H Q S"]) -> Float[Tensor, "B S S"]:
    return make_identity(product).expand(len(product), -1, -1)


def make_identity(like: Float[Tensor, "*B T"]) -> Float[Tensor, "T T"]:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
