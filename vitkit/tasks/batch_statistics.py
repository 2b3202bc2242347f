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
    own: Pair, every: Pair, concepts: Int64[Tensor, " b"], all_concepts: Int64[Tensor, " B"]
) -> Float64[Tensor, " 5"]:
    """Sums over the own pictures, of NAMES, and how many these are.

    Whether the nearest text belongs to it; how probable that is by chance; ln B, the softmax of a model that knows
    nothing; and how many of all pairs are not its own.
    """
    rows, batch = len(concepts), len(all_concepts)
    if not rows:
        return torch.zeros(len(NAMES) + 1, dtype=torch.float64, device=concepts.device)
    parts = own.image.split(max(1, TILE // batch))
    nearest = torch.cat([(part @ every.text.T).argmax(1) for part in parts])
    right = (all_concepts[nearest] == concepts).sum().double()
    known, counts = all_concepts.unique(return_counts=True)
    positives = counts[torch.searchsorted(known, concepts)].sum().double()
    sizes = right.new_tensor([rows * math.log(batch), rows])
    return torch.stack([right, positives / batch, sizes[0], rows * batch - positives, sizes[1]])
