"""Statistics of a batch of pairs for the log. b pairs of this rank, B pairs of all ranks."""

import math

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from vitkit.models import Pair

NAMES = ("accuracy", "chance", "ln_batch", "negatives")
TILE = 2**24  # scores at a time, 64 MB in float32


@torch.no_grad()
def sum_statistics(
    local: Pair, everything: Pair, positives: Int64[Tensor, " b"], all_positives: Int64[Tensor, " B"]
) -> Float64[Tensor, " 5"]:
    """Return the sums of NAMES over the images of this rank, and the number of images.

    They are top-1 accuracy, its chance level, ln B (the softmax loss of equal logits) and the number of negatives.
    """
    rows, batch = len(positives), len(all_positives)
    if not rows:
        return torch.zeros(len(NAMES) + 1, dtype=torch.float64, device=positives.device)
    parts = local.image.split(max(1, TILE // batch))
    nearest = torch.cat([(part @ everything.text.T).argmax(1) for part in parts])
    correct = (all_positives[nearest] == positives).sum().double()
    unique, counts = all_positives.unique(return_counts=True)
    positive_pairs = counts[torch.searchsorted(unique, positives)].sum().double()
    sizes = correct.new_tensor([rows * math.log(batch), rows])
    return torch.stack([correct, positive_pairs / batch, sizes[0], rows * batch - positive_pairs, sizes[1]])
