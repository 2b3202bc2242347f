"""Curves of models whose curves are known, and the checks that tell a map of a model from one of its architecture."""

import copy
import re

import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.interpret.measure.faithfulness import (
    blur,
    compute_mean_colour,
    compute_spearman,
    draw_random_maps,
    measure_faithfulness,
    select_logit,
    select_probability,
    shuffle_weights,
)

GRID, SIZE = (2, 4), (6, 8)
CELLS = 8
NONE = torch.zeros(1, 1, 1, 1)


def cellwise(values: Tensor) -> Tensor:
    """(B, h, w) as pictures whose cells have these sums."""
    return values.repeat_interleave(3, 1).repeat_interleave(2, 2)[:, None] / 6


def total(images: Tensor) -> Tensor:
    """A model whose one class is the sum of the pixels."""
    return images.sum((1, 2, 3))[:, None]


def test_curves_of_a_sum_are_cumulative_sums() -> None:
    values = torch.tensor([[5.0, 1, 3, 0], [2, 4, 7, 6]])[None].repeat(2, 1, 1)
    values[1] = values[0].flip(0)
    result = measure_faithfulness(
        total, cellwise(values), torch.zeros(2).long(), values, fill=NONE, steps=8, score=select_logit
    )
    ordered = torch.tensor([7.0, 6, 5, 4, 3, 2, 1, 0])
    gone = torch.cat([torch.zeros(1), ordered.cumsum(0)])
    assert_close(result.insertion.scores, gone.expand(2, -1))
    assert_close(result.deletion.scores, (28 - gone).expand(2, -1))
    assert_close(result.deletion.shares, torch.linspace(0, 1, 9))
    area = ((28 - gone)[:-1] + (28 - gone)[1:]).sum() / 16
    assert_close(result.deletion.area, area.expand(2))
    assert_close(result.deletion.area + result.insertion.area, torch.full((2,), 28.0))


def test_best_and_worst_maps_of_a_single_cell() -> None:
    object = torch.zeros(1, *GRID)
    object[0, 1, 2] = 1
    label, images = torch.zeros(1).long(), cellwise(object)
    for map, first, area in ((object, 0.0, 0.5 / CELLS), (-object, 1.0, 1 - 0.5 / CELLS)):
        result = measure_faithfulness(total, images, label, map, fill=NONE, steps=8, score=select_logit)
        assert_close(result.deletion.scores[0, 1].item(), first)
        assert_close(result.deletion.area.item(), area)
        assert_close(result.insertion.area.item(), 1 - area)


def test_random_curves_average_to_a_line() -> None:
    object = torch.zeros(200, *GRID)
    object[:, 1, 2] = 1
    result = measure_faithfulness(
        total,
        cellwise(object),
        torch.zeros(200).long(),
        object,
        fill=NONE,
        steps=8,
        score=select_logit,
        draws=4,
        seed=3,
    )
    line = 1 - torch.arange(9) / 8
    assert_close(result.random_deletion.scores.mean(0), line, rtol=0, atol=0.06)  # 3 deviations of 800 draws
    assert_close(result.random_insertion.scores.mean(0), line.flip(0), rtol=0, atol=0.06)
    assert_close(result.random_deletion.area.mean().item(), 0.5, rtol=0, atol=0.04)


def test_fewer_steps_take_equal_shares_and_end_with_everything() -> None:
    values = torch.rand(1, *GRID)
    result = measure_faithfulness(
        total, cellwise(values), torch.zeros(1).long(), values, fill=NONE, steps=3, score=select_logit
    )
    assert_close(result.deletion.shares, torch.tensor([0, 3, 5, 8]) / 8)
    assert_close(result.deletion.scores[0, -1].item(), 0.0)


def test_cells_are_replaced_in_place() -> None:
    images, fill = torch.randn(1, 3, *SIZE), torch.randn(1, 3, *SIZE)
    map = torch.zeros(1, *GRID)
    map[0, 1, 3] = 1
    batches: list[Tensor] = []

    def run(pictures: Tensor) -> Tensor:
        batches.append(pictures)
        return total(pictures)

    measure_faithfulness(run, images, torch.zeros(1).long(), map, fill=fill, steps=8, draws=1)
    assert torch.equal(batches[0], images) and torch.equal(batches[8], fill) and torch.equal(batches[9], fill)
    changed = images.clone()
    changed[..., 3:, 6:] = fill[..., 3:, 6:]
    assert torch.equal(batches[1], changed)


def test_the_score_is_the_probability_of_the_target() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]])
    expected = torch.tensor([2.718281828 / (1 + 2.718281828 + 20.085536923), 1 / 3])
    assert_close(select_probability(logits, torch.tensor([1, 0])), expected)
    with pytest.raises(ValueError, match="targets must be from 0 to 2, got targets from 1 to 3"):
        select_probability(logits, torch.tensor([1, 3]))


def test_fills_are_mean_colour_and_blur() -> None:
    images = torch.rand(2, 3, *SIZE)
    assert_close(compute_mean_colour(images)[1, 2].item(), images[1, 2].mean().item())
    flat = torch.full((1, 1, *SIZE), 0.3)
    assert_close(blur(flat), flat)
    soft = blur(images, 1.0)
    assert soft.shape == images.shape and soft.std() < 0.6 * images.std()
    point = torch.zeros(1, 1, 9, 11)
    point[..., 4, 5] = 1
    weights = torch.exp(-(torch.arange(-2.0, 3.0) ** 2) / 2)
    weights = weights / weights.sum()
    assert_close(blur(point, 1.0)[0, 0, 2:7, 3:8], weights[:, None] * weights)


@pytest.mark.parametrize(
    "maps, options, message",
    [
        (torch.rand(1, 4, 4), {}, "maps must divide 1 images of 6 x 8 pixels into equal cells, got (1, 4, 4)"),
        (torch.rand(1, *GRID), {"steps": 0}, "steps must be at least 1, got steps=0"),
        (torch.full((1, *GRID), torch.nan), {}, "maps must be finite"),
        (torch.rand(1, *GRID), {"draws": 0}, "draws must be at least 1, got draws=0"),
    ],
)
def test_invalid_arguments_are_refused(maps: Tensor, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        measure_faithfulness(total, torch.rand(1, 1, *SIZE), torch.zeros(1).long(), maps, fill=NONE, **options)


def test_random_maps_follow_from_the_seed() -> None:
    maps = torch.zeros(2, *GRID)
    assert torch.equal(draw_random_maps(maps, 3, 1), draw_random_maps(maps, 3, 1))
    assert not torch.equal(draw_random_maps(maps, 3, 1), draw_random_maps(maps, 3, 2))


def test_spearman_equals_scipy() -> None:
    one = torch.randn(4, 30).double()
    other = torch.randn(4, 30).double().round() + one.round() * torch.tensor([0.0, 0.5, 1.0, -1.0])[:, None]  # ties
    expected = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(one, other, strict=True)]
    assert_close(compute_spearman(one, other), torch.tensor(expected))
    assert not compute_spearman(one, torch.ones_like(one)).any()


def test_weights_are_shuffled_and_restored() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3, bias=False))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="from inside"), shuffle_weights(model, 1):
        inside = copy.deepcopy(model.state_dict())
        raise RuntimeError("from inside")
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)
        assert torch.equal(inside[name].flatten().sort().values, value.flatten().sort().values)
    assert not torch.equal(inside["0.weight"], before["0.weight"])
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    with shuffle_weights(model, 1):
        assert torch.equal(model[0].weight, inside["0.weight"])
    with shuffle_weights(model, 2):
        assert not torch.equal(model[0].weight, inside["0.weight"])
