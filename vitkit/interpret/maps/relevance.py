"""What the attention of a model has to do with one of its answers: gradient x attention, added up over the layers.

B batch, C channels, K outputs, H heads, T tokens, Q queries: T, or 1 where a pool that attends comes last; S keys.
https://arxiv.org/abs/2103.15679
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitkit.interpret.maps.rollout import chained, checked_start, pooled_row, pools
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.layers import attention_layers
from vitkit.models import CLIP
from vitkit.models.parts import image_tower, text_tower
from vitkit.nn import Attention, EndOfText


class TextRelevance(NamedTuple):
    """Which tokens of an image, and of its text, make the logit of the pair; `start` is the layer from which it counts.

    It is what the layers add to I, by which the token that is read would outshine all others. A text's tokens after its
    end have none.
    """

    image: Float[Tensor, "B T"]
    text: Float[Tensor, "B S"]
    start: int


class CrossRelevance(NamedTuple):
    """Of the tokens of a decoder for each other, and of those of its memory for them."""

    own: Float[Tensor, "B T T"]
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
    """R <- R + mean_h((dy/dA * A)+) R from R = I, over the layers: equations 5 and 6. `pooled_row` reads it.

    An attending pool's one query is another modality than the tokens: equation 10, by which its row is A R_normalised.

    Args:
        model: whose layers they are, in evaluation mode; it stays as it is, and so do gradients of its parameters.
        run: the outputs of images by this model.
        targets: the output, one for each image, that is to be explained.
        layers: first to last.
        start: the place of the first layer that counts, from either end.
    """
    found = gradient_attention(model, lambda: run(images), targets, layers[checked_start(start, len(layers)) :])
    return added_up(list(found.values()))


def added_up(products: Sequence[Float[Tensor, "B _ _ T"]]) -> Float[Tensor, "B Q T"]:
    result = identity_like(products[0])
    for product in chained(products):
        mean = positive(product)
        result = mean @ normalised(result) if pools(product) else result + mean @ result
    return result


def gradient_attention(
    model: nn.Module, run: Callable[[], Float[Tensor, "B K"]], targets: Int[Tensor, " B"], layers: Sequence[str]
) -> dict[str, Float[Tensor, "B H Q S"]]:
    """dy/dA * A of each head, with its sign, where y is a target's output; by layer, in the order in which they ran.

    Raises: ValueError for a model in training, a target that is not there, a layer on which no output depends.
    """
    if model.training:
        raise ValueError("model must be in evaluation mode, where an image's answer is its own; call model.eval()")
    with torch.enable_grad(), capture(model, *layers, gradient=True) as seen:
        outputs = run()
    if len(targets) != len(outputs) or targets.min() < 0 or targets.max() >= outputs.shape[1]:
        raise ValueError(
            f"targets must be {len(outputs)} numbers from 0 to {outputs.shape[1] - 1}, got {targets.tolist()}"
        )
    weights = [layer.weights for layer in seen.values()]
    if windows := [name for name, layer in seen.items() if len(layer.weights) != len(outputs)]:
        raise ValueError(f"layers must attend over whole images, got windows of them in {', '.join(windows)}")
    with torch.enable_grad():
        score = outputs.gather(1, targets.long()[:, None].to(outputs.device)).sum()
    gradients = torch.autograd.grad(score, weights, allow_unused=True) if score.requires_grad else [None] * len(weights)
    if unused := [name for name, gradient in zip(seen, gradients, strict=True) if gradient is None]:
        raise ValueError(
            f"layers must lead to the outputs, got {', '.join(unused)}; does run compute them by this model?"
        )
    pairs = zip(seen, weights, gradients, strict=True)
    return {name: weight.detach() * gradient for name, weight, gradient in pairs if gradient is not None}


def text_relevance(
    clip: CLIP, images: Float[Tensor, "B C H W"], ids: Int[Tensor, "B S"], *, start: int = -1
) -> TextRelevance:
    """Of the logit of each image and its text, in both towers.

    Args: start: the place of the first layer that counts in either tower. The authors' notebook takes the last alone.
    Raises: ValueError for unequal numbers of images and texts.
    """
    if len(images) != len(ids):
        raise ValueError(f"images and texts must be pairs, got {len(images)} images and {len(ids)} texts")

    def logits() -> Float[Tensor, "B 1"]:
        pair = clip(images, ids)
        return ((pair.image * pair.text).sum(1, keepdim=True) * pair.scale) + pair.bias

    modules = ({*tower.modules()} for tower in (image_tower(clip), text_tower(clip)))
    towers = [[name for name, layer in attention_layers(clip).items() if layer in inside] for inside in modules]
    sides = [names[checked_start(start, len(names)) :] for names in towers]
    found = gradient_attention(clip, logits, ids.new_zeros(len(ids)), [*sides[0], *sides[1]])
    image, text = (added(added_up([found[name] for name in side])) for side in sides)
    pool = clip.text.pool
    read = (ids == pool.end).int().argmax(1) if isinstance(pool, EndOfText) else torch.full_like(ids[:, 0], -1)
    return TextRelevance(pooled_row(clip, image), text[torch.arange(len(text)), read], start)


def cross_relevance(
    decoder: nn.Module,
    run: Callable[[], Float[Tensor, "B K"]],
    targets: Int[Tensor, " B"],
    layers: Sequence[str],
    *,
    memory: Float[Tensor, "B S S"] | None = None,
) -> CrossRelevance:
    """Of a decoder that reads a memory: equations 6 and 7 for its self-attention, 8 to 10 for its cross-attention.

    The memory does not read the decoder, so that equation 11 adds nothing.

    Args:
        decoder: vitkit's Encoder with `memory_dim`, or what holds one, in evaluation mode.
        run: its outputs, as of a closure over its inputs.
        layers: its self- and cross-attention, as they run, one cross-attention at least.
        memory: the `relevance` of the memory's tokens for each other; I without it.
    """
    found = gradient_attention(decoder, run, targets, layers)
    modules = dict(decoder.named_modules())
    crossing = {name: isinstance(modules[name], Attention) and modules[name].memory_dim is not None for name in layers}
    if not any(crossing.values()):
        raise ValueError(f"layers must hold a cross-attention of vitkit's, got {', '.join(layers)}")
    first = next(product for name, product in found.items() if crossing[name])
    own = torch.eye(first.shape[2], dtype=first.dtype, device=first.device).expand(len(first), -1, -1)
    across = first.new_zeros(len(first), *first.shape[2:])
    memory = identity_like(first) if memory is None else memory
    for name, product in found.items():
        mean = positive(product)
        if crossing[name]:
            across = across + normalised(own).mT @ mean @ normalised(memory)
        else:
            own, across = own + mean @ own, across + mean @ across
    return CrossRelevance(own, across)


def input_relevance(
    run: Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B K"]],
    images: Float[Tensor, "B C H W"],
    targets: Int[Tensor, " B"],
    patch: tuple[int, int],
) -> Float[Tensor, "B h w"]:
    """Gradient x input, added up over each patch: the change of the target's output without it, to first order.

    https://arxiv.org/abs/1605.01713, section 2.
    """
    with torch.enable_grad():
        pixels = images.detach().requires_grad_()
        score = run(pixels).gather(1, targets.long()[:, None].to(pixels.device)).sum()
    (gradient,) = torch.autograd.grad(score, pixels)
    return (gradient * images).sum(1).unflatten(2, (-1, patch[1])).unflatten(1, (-1, patch[0])).sum((2, 4))


def positive(product: Float[Tensor, "B H Q S"]) -> Float[Tensor, "B Q S"]:
    """Equation 5: the mean over the heads of what speaks for the target."""
    return product.clamp(min=0).mean(1)


def normalised(result: Float[Tensor, "B T T"]) -> Float[Tensor, "B T T"]:
    """Equations 8 and 9: what was added to I, rows made to sum to 1, and I."""
    change = added(result)
    sums = change.sum(-1, keepdim=True)
    return torch.where(sums > 0, change / sums, 0) + identity(result)


def added(result: Float[Tensor, "B Q T"]) -> Float[Tensor, "B Q T"]:
    """What the layers added to I, from which R starts; all of it in the one row of a pool that attends."""
    return result - identity(result) if result.shape[1] == result.shape[2] else result


def identity_like(product: Float[Tensor, "B H Q S"]) -> Float[Tensor, "B S S"]:
    return identity(product).expand(len(product), -1, -1)


def identity(like: Float[Tensor, "*B T"]) -> Float[Tensor, "T T"]:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
