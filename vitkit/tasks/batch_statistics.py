"""What a batch of pairs is like, beside its loss. b pairs of this rank, B of all ranks."""

import math

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from vitkit.models import Pair

NAMES = ("accuracy", "chance", "ln_batch", "negatives")
TILE = 2**24  # logits at a time, 64 MB in float32


@torch.no_grad()
def noted(
    own: Pair, every: Pair, positives: Int64[Tensor, " b"], all_positives: Int64[Tensor, " B"]
) -> Float64[Tensor, " 5"]:
    """Sums over the own pictures, of NAMES, and how many these are.

    Whether the nearest text belongs to it; how probable that is by chance; ln B, the softmax of a model that knows
    nothing; and how many of all pairs are not its own.
    """
    rows, batch = len(positives), len(all_positives)
    if not rows:
        return torch.zeros(len(NAMES) + 1, dtype=torch.float64, device=positives.device)
    parts = own.image.split(max(1, TILE // batch))
    nearest = torch.cat([(part @ every.text.T).argmax(1) for part in parts])
    right = (all_positives[nearest] == positives).sum().double()
    known, counts = all_positives.unique(return_counts=True)
    positive_pairs = counts[torch.searchsorted(known, positives)].sum().double()
    sizes = right.new_tensor([rows * math.log(batch), rows])
    return torch.stack([right, positive_pairs / batch, sizes[0], rows * batch - positive_pairs, sizes[1]])
