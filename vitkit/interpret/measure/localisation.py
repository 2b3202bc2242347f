"""Whether a map is where the object is, as a mask says. B pictures, h w the map's cells."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def pointing(maps: Float[Tensor, "B h w"], masks: Bool[Tensor, "B h w"]) -> Float[Tensor, " B"]:
    """The pointing game (https://arxiv.org/abs/1608.00507, section 4.2): 1 where the highest cell is in the mask.

    Of several highest cells it is the share of those in the mask, so that a flat map does as well as chance.
    """
    top = maps == maps.amax((1, 2), keepdim=True)
    return (top & masks).sum((1, 2)) / top.sum((1, 2))


def energy(maps: Float[Tensor, "B h w"], masks: Bool[Tensor, "B h w"]) -> Float[Tensor, " B"]:
    """The share of a map that lies in the mask (https://arxiv.org/abs/1910.01279, section 4.2); 0 of a map of zeros."""
    if (maps < 0).any():
        raise ValueError(f"maps must be 0 or more where shares are taken, got {maps.min().item():g}")
    total = maps.sum((1, 2))
    return torch.where(total > 0, (maps * masks).sum((1, 2)) / total, 0)


class Overlap(NamedTuple):
    """Of what is taken for the object and what is: intersection over union, also of the rest, and right cells."""

    object: Float[Tensor, " B"]
    background: Float[Tensor, " B"]
    accuracy: Float[Tensor, " B"]


def overlap(found: Bool[Tensor, "B h w"], masks: Bool[Tensor, "B h w"]) -> Overlap:
    """1 where neither has any."""

    def share(one: Tensor, other: Tensor) -> Tensor:
        union = (one | other).sum((1, 2))
        return torch.where(union > 0, (one & other).sum((1, 2)) / union, 1)

    return Overlap(share(found, masks), share(~found, ~masks), (found == masks).double().mean((1, 2)).to(torch.float32))


def above_mean(maps: Float[Tensor, "B h w"]) -> Bool[Tensor, "B h w"]:
    """Segmentation as in Chefer et al. (https://arxiv.org/abs/2012.09838, section 4)."""
    return maps > maps.mean((1, 2), keepdim=True)


def most_of(maps: Float[Tensor, "B h w"], share: float = 0.6) -> Bool[Tensor, "B h w"]:
    """The fewest cells that hold so much of the map: DINO (https://arxiv.org/abs/2104.14294, section 4.2.2)."""
    if not 0 < share <= 1 or (maps < 0).any():
        raise ValueError(f"share must be above 0 and at most 1, and maps 0 or more, got share={share}")
    values, order = maps.flatten(1).sort(dim=1, descending=True, stable=True)
    before = values.cumsum(1) - values  # mass of the cells that are in already
    kept = before < share * values.sum(1, keepdim=True)
    return torch.zeros_like(kept).scatter(1, order, kept).view_as(maps)
