"""Localisation measures against hand calculations."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitkit.interpret.measure.localisation import (
    compute_energy_share,
    compute_overlap,
    compute_pointing_accuracy,
    segment_above_mean,
    segment_top_mass,
)

MAPS = torch.tensor([[[0.1, 0.4, 0.0], [0.3, 0.0, 0.2]], [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
MASKS = torch.tensor([[[0, 1, 0], [0, 0, 1]], [[1, 0, 0], [1, 1, 0]]]).bool()


def test_a_map_points_at_its_highest_cell() -> None:
    assert_close(compute_pointing_accuracy(MAPS, MASKS), torch.tensor([1.0, 0.5]))
    assert_close(compute_pointing_accuracy(-MAPS, MASKS), torch.tensor([0.0, 0.5]))  # the lowest: two and four of them


def test_a_flat_map_points_as_chance_does() -> None:
    assert_close(compute_pointing_accuracy(torch.ones(2, 2, 3), MASKS), torch.tensor([2 / 6, 3 / 6]))


def test_energy_is_the_share_inside() -> None:
    assert_close(compute_energy_share(MAPS, MASKS), torch.tensor([0.6, 0.5]))
    assert not compute_energy_share(torch.zeros(2, 2, 3), MASKS).any()
    with pytest.raises(ValueError, match="maps must be 0 or more to take shares, got -1"):
        compute_energy_share(-MAPS, MASKS)


def test_segmentation_above_the_mean() -> None:
    expected = [[[0, 1, 0], [1, 0, 1]], [[1, 1, 0], [0, 0, 0]]]
    assert torch.equal(segment_above_mean(MAPS), torch.tensor(expected).bool())


@pytest.mark.parametrize(
    "share, first",
    [
        (0.39, [[0, 1, 0], [0, 0, 0]]),
        (0.6, [[0, 1, 0], [1, 0, 0]]),  # 0.4, then 0.7
        (0.71, [[0, 1, 0], [1, 0, 1]]),
        (1.0, [[1, 1, 0], [1, 0, 1]]),
    ],
)
def test_the_fewest_cells_hold_a_share_of_the_mass(share: float, first: list[list[int]]) -> None:
    assert torch.equal(segment_top_mass(MAPS.double(), share)[0], torch.tensor(first).bool())


def test_top_mass_equals_dinos_script() -> None:
    """By its own steps: sort upwards, normalise, keep where the cumulative sum exceeds 1 - share."""
    maps = torch.rand(5, 4, 7).double()
    flat = maps.flatten(1)
    values, order = flat.sort(dim=1)
    kept = (values / values.sum(1, keepdim=True)).cumsum(1) > 1 - 0.6
    expected = torch.zeros_like(kept).scatter(1, order, kept)
    assert torch.equal(segment_top_mass(maps), expected.view_as(maps))


@pytest.mark.parametrize("maps, share", [(MAPS, 0.0), (MAPS, 1.5), (-MAPS, 0.5)])
def test_invalid_shares_are_refused(maps: Tensor, share: float) -> None:
    with pytest.raises(ValueError, match=f"share must be above 0 and at most 1, and maps 0 or more, got share={share}"):
        segment_top_mass(maps, share)


def test_overlap_counts_cells() -> None:
    found = torch.tensor([[[0, 1, 1], [0, 0, 1]], [[0, 0, 0], [0, 0, 0]]]).bool()
    masks = MASKS.clone()
    masks[1] = False
    result = compute_overlap(found, masks)
    assert_close(result.object, torch.tensor([2 / 3, 1.0]))
    assert_close(result.background, torch.tensor([3 / 4, 1.0]))
    assert_close(result.accuracy, torch.tensor([5 / 6, 1.0]))
