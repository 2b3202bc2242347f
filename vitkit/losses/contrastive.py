"""Which image belongs to which text: sums over the images and texts of one rank, against those of all.

b pairs of this rank, B of all ranks, E embedding. A concept is a number for each pair: pairs with equal ones are all
positives of each other, as two captions of one image are, or one caption of two.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitkit.models import Pair

# Above so many logits (64 MB in float32) they are made in tiles of about as many, and anew in the backward pass.
TILE = 2**24

ROUNDING = 1e-4  # float32 gives the softmax a gradient of 1e-7 for the bias, where the sigmoid's is above 0.1

Contrast = Callable[[Pair, Pair, Tensor, Tensor], Tensor]  # plain types, which a config's parser can compare


def softmax(own: Pair, every: Pair, positives: Int64[Tensor, " b"], all_positives: Int64[Tensor, " B"]) -> Tensor:
    """Sum over the own pairs of the cross entropy of image to texts and of text to images, halved.

    Each positive has an equal share of the target (https://arxiv.org/abs/2204.03610, equations 2 and 3); with one each
    it is CLIP's loss (https://arxiv.org/abs/2103.00020, figure 3). The bias changes nothing.
    """
    return (
        sum(
            (
                (
                    log_sum_exp(x, y, every.scale) - every.scale * (x * positive(y, positives, all_positives)).sum(1)
                ).sum()
                for x, y in ((own.image, every.text), (own.text, every.image))
            ),
            start=every.scale.new_zeros(()),
        )
        / 2
    )


def sigmoid(own: Pair, every: Pair, positives: Int64[Tensor, " b"], all_positives: Int64[Tensor, " B"]) -> Tensor:
    """Sum over the own images and all texts of -log sigmoid(z logit), z = 1 for positives and -1 for all others.

    SigLIP, https://arxiv.org/abs/2303.15343, equation 1.
    """

    def rows(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor, concept: Tensor) -> Tensor:
        z = (concept[:, None] == all_positives).to(image.dtype) * 2 - 1
        return -F.logsigmoid(z * (scale * image @ text.T + bias)).sum(1)

    return torch.cat(tiled(rows, own.image, every.text, every.scale, every.bias, positives)).sum()


def depends_on_bias(loss: Contrast) -> bool:
    """Return whether the gradient of a loss with respect to the bias is more than rounding, found on three pairs."""
    angles, bias = torch.tensor([0.0, 0.5, 2.0]), torch.tensor(-0.5, requires_grad=True)
    image, text = (torch.stack([angle.cos(), angle.sin()], 1) for angle in (angles, angles + 0.3))
    pair, positives = Pair(image, text, torch.tensor(2.0, requires_grad=True), bias), torch.arange(3)
    with torch.enable_grad():
        total = loss(pair, pair, positives, positives)
    if not total.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(total, bias, allow_unused=True)
    return gradient is not None and abs(gradient.item()) > ROUNDING


def log_sum_exp(x: Float[Tensor, "b E"], y: Float[Tensor, "B E"], scale: Float[Tensor, ""]) -> Float[Tensor, " b"]:
    """log sum_j exp(scale x_i . y_j)"""

    def rows(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return (scale * x @ y.T).logsumexp(1)

    return torch.cat(tiled(rows, x, y, scale))


def tiled(rows: Callable[..., Tensor], x: Tensor, y: Tensor, *rest: Tensor) -> list[Tensor]:
    """What `rows` makes of x, part by part where all of its logits with y would be more than TILE.

    What of the rest is as long as x is cut like it. https://arxiv.org/abs/2410.17243 (Inf-CL)
    """
    height = max(1, TILE // max(1, len(y)))
    if len(x) <= height:
        return [rows(x, y, *rest)]
    parts = zip(*(one.split(height) if one.ndim else [one] * -(-len(x) // height) for one in rest), strict=True)
    return [
        checkpoint(rows, part, y, *others, use_reentrant=False)
        for part, others in zip(x.split(height), parts, strict=True)
    ]


def positive(
    y: Float[Tensor, "B E"], positives: Int64[Tensor, " b"], all_positives: Int64[Tensor, " B"]
) -> Float[Tensor, "b E"]:
    """For each of `positives` the mean of the rows that have it; every concept must be among all."""
    known, places = all_positives.unique(return_inverse=True)
    sums = y.new_zeros(len(known), y.shape[1]).index_add(0, places, y)
    means = sums / places.bincount(minlength=len(known))[:, None]
    return means[torch.searchsorted(known, positives)]
