"""Where the heads stand among the axes of others' layers, by their class: it is never guessed.

B batch, W windows, H heads, T queries, S keys, Dh head width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from vitkit.interpret.see.layers import NotCaptured, full_name

WINDOWS_FIRST = {"timm.models.twins.LocallyGroupedAttn"}  # (B, W, H, T, ...)
HEADS_FIRST = {"timm.models.nest.Attention", "timm.models.hiera.MaskUnitAttention"}  # (B, H, W, T, ...)
FOLDED = {"timm.models.vision_transformer_sam.Attention"}  # (B H, T, ...)


class Axes(NamedTuple):
    """From a layer's own axes to (B, H, T, Dh), or (B W, H, T, Dh) where it attends in windows.

    `back` takes such a tensor and one that has the layer's own axes.
    """

    to: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor], Tensor]


def axes_of(module: nn.Module, ndim: int) -> Axes:
    """Raises: NotCaptured."""
    name, foreign = full_name(module), module
    if ndim == 4:
        return Axes(lambda x: x, lambda x, like: x)
    if ndim == 5 and name in WINDOWS_FIRST:
        return Axes(lambda x: x.flatten(0, 1), lambda x, like: x.unflatten(0, like.shape[:2]))
    if ndim == 5 and name in HEADS_FIRST:
        return Axes(
            lambda x: x.transpose(1, 2).flatten(0, 1),
            lambda x, like: x.unflatten(0, (like.shape[0], like.shape[2])).transpose(1, 2),
        )
    if ndim == 3 and name in FOLDED:
        return Axes(lambda x: x.unflatten(0, (-1, heads_of(foreign))), lambda x, like: x.flatten(0, 1))
    raise NotCaptured(f"{type(module).__name__} attends on {ndim} axes: which are heads is not known")


def heads_of(foreign: Any) -> int:
    return foreign.num_heads
