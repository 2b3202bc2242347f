"""Position of the head axis in layers of other libraries, by class; unknown classes are refused.

B batch, W windows, H heads, T queries, S keys, Dh head width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from vitkit.interpret.see.layers import CaptureError, get_class_path

WINDOWS_FIRST = {"timm.models.twins.LocallyGroupedAttn"}  # (B, W, H, T, ...)
HEADS_FIRST = {"timm.models.nest.Attention", "timm.models.hiera.MaskUnitAttention"}  # (B, H, W, T, ...)
FOLDED = {"timm.models.vision_transformer_sam.Attention"}  # (B H, T, ...)


class HeadAxes(NamedTuple):
    """Functions between a layer's own axes and (B, H, T, Dh), or (B W, H, T, Dh) for windowed attention.

    `from_heads` takes such a tensor and one that has the layer's own axes.
    """

    to_heads: Callable[[Tensor], Tensor]
    from_heads: Callable[[Tensor, Tensor], Tensor]


def find_head_axes(module: nn.Module, ndim: int) -> HeadAxes:
    """Return the axes of a layer whose tensors have `ndim` axes. Raises: CaptureError if they are unknown."""
    name, layer = get_class_path(module), module
    if ndim == 4:
        return HeadAxes(lambda x: x, lambda x, like: x)
    if ndim == 5 and name in WINDOWS_FIRST:
        return HeadAxes(lambda x: x.flatten(0, 1), lambda x, like: x.unflatten(0, like.shape[:2]))
    if ndim == 5 and name in HEADS_FIRST:
        return HeadAxes(
            lambda x: x.transpose(1, 2).flatten(0, 1),
            lambda x, like: x.unflatten(0, (like.shape[0], like.shape[2])).transpose(1, 2),
        )
    if ndim == 3 and name in FOLDED:
        return HeadAxes(lambda x: x.unflatten(0, (-1, get_num_heads(layer))), lambda x, like: x.flatten(0, 1))
    raise CaptureError(f"{type(module).__name__} attends on {ndim} axes: which of them is the heads is unknown")


def get_num_heads(layer: Any) -> int:
    return layer.num_heads
