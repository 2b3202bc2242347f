"""How much better hidden patches are known than by the mean of each over the pictures.

B batch, N patches of Q numbers, M of them hidden.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor


class Tally(NamedTuple):
    """Sums over pictures in float64, which add up over batches and ranks: how many they are, their losses, of each
    patch its target, how often it was hidden, and then its target and the squares of it.
    """

    pictures: Float[Tensor, ""]
    loss: Float[Tensor, ""]
    targets: Float[Tensor, "N Q"]
    times: Float[Tensor, "N 1"]
    hidden: Float[Tensor, "N Q"]
    squares: Float[Tensor, "N Q"]

    @classmethod
    def of(cls, target: Float[Tensor, "B N Q"], hidden: Int64[Tensor, "B M"], losses: Float[Tensor, " B"]) -> "Tally":
        mask = torch.zeros_like(target[:, :, 0]).scatter(1, hidden, 1.0)[:, :, None]
        behind = mask * target
        sums = target.sum(0), mask.sum(0), behind.sum(0), (behind * target).sum(0)
        # There is no float64 on some devices; the sums of one batch lose nothing that matters.
        return cls(*(part.cpu().double() for part in (losses.new_tensor(len(losses)), losses.sum(), *sums)))

    def plus(self, other: "Tally") -> "Tally":
        return Tally(*map(torch.add, self, other))

    def deviation(self) -> float:
        """The mean square of what hidden patches differ by from their means over all pictures."""
        mean = self.targets / self.pictures
        total = (self.squares - 2 * mean * self.hidden + self.times * mean.square()).sum()
        return (total / (self.times.sum() * mean.shape[1])).item()
