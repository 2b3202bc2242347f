"""The loss of a language model. B batch, T tokens, D width, n targets that count, V vocabulary."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from vitkit.losses.tiles import compute_in_tiles

IGNORED = -100  # PyTorch's `ignore_index`


def next_token(
    features: Float[Tensor, "B T D"],
    targets: Int64[Tensor, "B T"],
    logits: Callable[[Tensor], Tensor],
    *,
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], int]:
    """Return the sum of the cross entropy over the targets, and their number. Targets of -100 do not count.

    The logits of tokens whose target does not count are never computed, and the others in parts: (B, T, V) may be
    larger than the model.

    Args:
        logits: from features (n, D) to (n, V), such as `TextDecoder.logits`.
        smoothing: the share of each target that all V ids divide, as `label_smoothing` of PyTorch's cross entropy.
    """

    def compute_sum(features: Tensor, targets: Tensor) -> Tensor:
        scores = logits(features)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(scores, targets, reduction="sum", label_smoothing=smoothing)

    counts = targets != IGNORED
    features, targets = features[counts], targets[counts]
    with torch.no_grad():
        vocabulary = logits(features[:1]).shape[-1]
    return torch.stack(compute_in_tiles(compute_sum, vocabulary, features, targets)).sum(), len(targets)
