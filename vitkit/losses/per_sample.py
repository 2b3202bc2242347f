"""Losses for each sample, (B,). B batch, K classes, M hidden patches of Q numbers.

Targets (B, K) are probabilities of the classes (rows of sum 1), or sets of classes (0 or 1 each), mixed or not.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# Return types are plain tensors, which the parser of configs can compare.


def cross_entropy(logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"]) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none")


def binary_cross_entropy(
    logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], positive: Float[Tensor, " K"] | None = None
) -> Tensor:
    """Return the mean over classes of the binary cross entropy, as in timm and DeiT III.

    Args: positive: weight of the positive label of each class.
    """
    return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=positive, reduction="none").mean(1)


def squared_error(pixels: Float[Tensor, "B M Q"], target: Float[Tensor, "B M Q"]) -> Tensor:
    """Return the mean squared error over the hidden patches (MAE, https://arxiv.org/abs/2111.06377, section 3)."""
    return (pixels.to(target.dtype) - target).square().mean((1, 2))
