"""Contrastive losses of images and texts: sums over the pairs of one rank, against those of all ranks.

b pairs of this rank, B of all ranks, E embedding. `positives` has a number for each pair: pairs with equal numbers are
positives of each other, such as two captions of one image, or two images with one caption.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from vitkit.losses.tiles import compute_in_tiles
from vitkit.models import Pair

ROUNDING = 1e-4  # in float32 the bias has a gradient of 1e-7 in the softmax loss, and above 0.1 in the sigmoid loss

Contrast = Callable[[Pair, Pair, Tensor, Tensor], Tensor]  # plain types, which the parser of configs can compare


def softmax(pairs: Pair, all_pairs: Pair, positives: Int64[Tensor, " b"], all_positives: Int64[Tensor, " B"]) -> Tensor:
    """Sum, over the pairs of this rank, half of the cross entropy of image to texts and of text to images.

    All positives share the target equally (https://arxiv.org/abs/2204.03610, equations 2 and 3). With one positive each
    it is CLIP's loss (https://arxiv.org/abs/2103.00020, figure 3). It is independent of the bias.
    """
    scale, total = all_pairs.scale, all_pairs.scale.new_zeros(())
    for x, y in ((pairs.image, all_pairs.text), (pairs.text, all_pairs.image)):
        target = scale * (x * average_positives(y, positives, all_positives)).sum(1)
        total = total + (log_sum_exp(x, y, scale) - target).sum()
    return total / 2


def sigmoid(pairs: Pair, all_pairs: Pair, positives: Int64[Tensor, " b"], all_positives: Int64[Tensor, " B"]) -> Tensor:
    """Sum -log sigmoid(z logit) over images of this rank and all texts, with z = 1 for positives and -1 for others.

    SigLIP, https://arxiv.org/abs/2303.15343, equation 1.
    """

    def compute_rows(image: Tensor, scale: Tensor, bias: Tensor, numbers: Tensor) -> Tensor:
        z = (numbers[:, None] == all_positives).to(image.dtype) * 2 - 1
        return -F.logsigmoid(z * (scale * image @ text.T + bias)).sum(1)

    _, text, scale, bias = all_pairs
    return torch.cat(compute_in_tiles(compute_rows, len(text), pairs.image, scale, bias, positives)).sum()


def depends_on_bias(loss: Contrast) -> bool:
    """Return whether the bias has a gradient beyond rounding, tried on three pairs."""
    angles, bias = torch.tensor([0.0, 0.5, 2.0]), torch.tensor(-0.5, requires_grad=True)
    image, text = (torch.stack([angle.cos(), angle.sin()], 1) for angle in (angles, angles + 0.3))
    pairs, positives = Pair(image, text, torch.tensor(2.0, requires_grad=True), bias), torch.arange(3)
    with torch.enable_grad():
        total = loss(pairs, pairs, positives, positives)
    if not total.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(total, bias, allow_unused=True)
    return gradient is not None and abs(gradient.item()) > ROUNDING


def log_sum_exp(x: Float[Tensor, "b E"], y: Float[Tensor, "B E"], scale: Float[Tensor, ""]) -> Float[Tensor, " b"]:
    """Return log sum_j exp(scale x_i . y_j)."""

    def compute_rows(x: Tensor, scale: Tensor) -> Tensor:
        return (scale * x @ y.T).logsumexp(1)

    return torch.cat(compute_in_tiles(compute_rows, len(y), x, scale))


def average_positives(
    y: Float[Tensor, "B E"], positives: Int64[Tensor, " b"], all_positives: Int64[Tensor, " B"]
) -> Float[Tensor, "b E"]:
    """Return the mean of y[all_positives == positives[i]] for each i. `all_positives` holds each of `positives`."""
    numbers, places = all_positives.unique(return_inverse=True)
    sums = y.new_zeros(len(numbers), y.shape[1]).index_add(0, places, y)
    means = sums / places.bincount(minlength=len(numbers))[:, None]
    return means[torch.searchsorted(numbers, positives)]
