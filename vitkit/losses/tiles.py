"""Functions of matrices of logits that are too large for the memory."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint

TILE = 2**24  # logits, 64 MB in float32


def compute_in_tiles(function: Callable[..., Tensor], width: int, x: Tensor, *rest: Tensor) -> list[Tensor]:
    """Return function(x, *rest), for parts of x if it computes more than TILE logits, `width` for each row of x.

    The logits of a part are computed again in the backward pass. Each of `rest` is a scalar, or as long as x and split
    like it. https://arxiv.org/abs/2410.17243 (Inf-CL)
    """
    height = max(1, TILE // max(1, width))
    if len(x) <= height:
        return [function(x, *rest)]
    count = -(-len(x) // height)
    columns = [tensor.split(height) if tensor.ndim else [tensor] * count for tensor in rest]
    return [
        checkpoint(function, part, *others, use_reentrant=False)
        for part, *others in zip(x.split(height), *columns, strict=True)
    ]
