"""Localisation: agreement of maps with masks of the object. B images, h w the map's cells."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def compute_pointing_accuracy(maps: Float[Tensor, "B h w"], masks: Bool[Tensor, "B h w"]) -> Float[Tensor, " B"]:
    """Return 1 if the highest cell is in the mask (pointing game, https://arxiv.org/abs/1608.00507, section 4.2).

    With several highest cells it is the share of them in the mask, so that a flat map scores as chance does.
    """
    highest = maps == maps.amax((1, 2), keepdim=True)
    return (highest & masks).sum((1, 2)) / highest.sum((1, 2))


def compute_energy_share(maps: Float[Tensor, "B h w"], masks: Bool[Tensor, "B h w"]) -> Float[Tensor, " B"]:
    """Return the share of a map inside the mask (energy-based pointing game); 0 for a map of zeros.

    https://arxiv.org/abs/1910.01279, section 4.2.
    """
    if (maps < 0).any():
        raise ValueError(f"maps must be 0 or more to take shares, got {maps.min().item():g}")
    total = maps.sum((1, 2))
    return torch.where(total > 0, (maps * masks).sum((1, 2)) / total, 0)


class Overlap(NamedTuple):
    """Intersection over union of object and background, and pixel accuracy over the cells."""

    object: Float[Tensor, " B"]
    background: Float[Tensor, " B"]
    accuracy: Float[Tensor, " B"]


def compute_overlap(segments: Bool[Tensor, "B h w"], masks: Bool[Tensor, "B h w"]) -> Overlap:
    """Compare segmentations with masks; the IoU of two empty ones is 1."""

    def compute_iou(first: Tensor, second: Tensor) -> Tensor:
        union = (first | second).sum((1, 2))
        return torch.where(union > 0, (first & second).sum((1, 2)) / union, 1)

    accuracy = (segments == masks).double().mean((1, 2)).to(torch.float32)
    return Overlap(compute_iou(segments, masks), compute_iou(~segments, ~masks), accuracy)


def segment_above_mean(maps: Float[Tensor, "B h w"]) -> Bool[Tensor, "B h w"]:
    """Select the cells above the map's mean, as Chefer et al. (https://arxiv.org/abs/2012.09838, section 4)."""
    return maps > maps.mean((1, 2), keepdim=True)


def segment_top_mass(maps: Float[Tensor, "B h w"], share: float = 0.6) -> Bool[Tensor, "B h w"]:
    """Select the fewest cells that hold a share of the map (DINO, https://arxiv.org/abs/2104.14294, section 4.2.2)."""
    if not 0 < share <= 1 or (maps < 0).any():
        raise ValueError(f"share must be above 0 and at most 1, and maps 0 or more, got share={share}")
    values, order = maps.flatten(1).sort(dim=1, descending=True, stable=True)
    before = values.cumsum(1) - values  # mass of the higher cells
    selected = before < share * values.sum(1, keepdim=True)
    return torch.zeros_like(selected).scatter(1, order, selected).view_as(maps)
