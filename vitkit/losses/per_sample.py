"""Numbers from outputs, one for each sample: (B,). B batch, K classes, M hidden patches of Q numbers.

Targets (B, K) are distributions over the classes (rows of sum 1), or sets of classes (0 or 1 each), mixed or not.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# They give plain tensors: a config's parser compares that type.


def cross_entropy(logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"]) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none")


def binary_cross_entropy(
    logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], positive: Float[Tensor, " K"] | None = None
) -> Tensor:
    """A yes or no for each class, and their mean, as timm and DeiT III have it.

    Args: positive: how much more a yes weighs than a no.
    """
    return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=positive, reduction="none").mean(1)


def squared_error(pixels: Float[Tensor, "B M Q"], target: Float[Tensor, "B M Q"]) -> Tensor:
    """The mean over the hidden patches alone (MAE, https://arxiv.org/abs/2111.06377, section 3)."""
    return (pixels.to(target.dtype) - target).square().mean((1, 2))
