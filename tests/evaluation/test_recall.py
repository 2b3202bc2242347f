"""Ranks by counting, against literal answers and against sorting."""

from itertools import combinations
from statistics import mean

import pytest
import torch

from vitkit.evaluation.recall import missed, ranks, recall


def test_karpathy_s_protocol_by_hand() -> None:
    """Two pictures with two captions and a third with one; scores are written down, one hot queries read them out."""
    scores = torch.tensor(
        [
            [0.9, 0.1, 0.8, 0.2, 0.3],  # the first picture's captions are 0 and 1: the first is found at once
            [0.5, 0.6, 0.4, 0.3, 0.7],  # 2 and 3: behind 4, 1 and 0
            [0.4, 0.3, 0.2, 0.1, 0.0],  # 4: the last
        ]
    )
    pairs = torch.tensor([[0, 0], [0, 1], [1, 2], [1, 3], [2, 4]])
    assert ranks(torch.eye(3), scores.T, pairs).tolist() == [1, 4, 5]
    # Each caption has one picture; of column 1 it is the last of 0.1, 0.6, 0.3.
    assert ranks(scores.T, torch.eye(3), pairs.flip(1)).tolist() == [1, 3, 2, 1, 3]
    found = recall(torch.eye(3), scores.T, pairs, (1, 4))
    assert found.at == {1: pytest.approx(1 / 3), 4: pytest.approx(2 / 3)}
    assert found.median == 4
    assert found.ranks.tolist() == [1, 4, 5]
    # Among 5 captions the first drawn is one of 2, 2, 1; of four drawn one of two is always there.
    assert found.chance == {1: pytest.approx((0.4 + 0.4 + 0.2) / 3), 4: pytest.approx((1 + 1 + 0.8) / 3)}


def test_of_equal_scores_the_first_item_is_in_front() -> None:
    items = torch.tensor([[0.5], [0.5], [0.7], [0.5]])
    pairs = torch.tensor([[0, 3], [1, 1], [2, 0], [3, 1], [3, 3]])
    assert ranks(torch.ones(4, 1), items, pairs).tolist() == [4, 3, 2, 3]


def test_the_median_of_an_even_number_lies_between() -> None:
    items = torch.tensor([[0.9], [0.5], [0.1]])
    assert recall(torch.ones(2, 1), items, torch.tensor([[0, 0], [1, 1]])).median == 1.5


@pytest.mark.parametrize("tile", [1, 70, 2**24])
def test_tiles_are_the_whole(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.evaluation.recall.TILE", tile)
    queries, items = torch.randn(23, 8), torch.randn(31, 8)
    pairs = torch.cat([torch.stack([torch.arange(23), torch.randint(31, (23,))], 1), torch.randint(23, (40, 2))])
    order = (queries @ items.T).argsort(1, descending=True).argsort(1)  # the place of each item
    expected = [min(order[q, i].item() for q, i in pairs.tolist() if q == query) + 1 for query in range(23)]
    assert ranks(queries, items, pairs).tolist() == expected


@pytest.mark.parametrize("k", [1, 2, 5])
def test_chance_is_the_mean_over_all_draws(k: int) -> None:
    for positives in range(1, 6):
        hits = mean(any(item < positives for item in draw) for draw in combinations(range(5), k))
        assert 1 - missed(torch.tensor([positives]).double(), 5, k).item() == pytest.approx(hits)


def test_more_than_all_items_are_always_found() -> None:
    found = recall(torch.ones(1, 1), torch.tensor([[1.0], [2.0]]), torch.tensor([[0, 0]]))
    assert found.at == {1: 0.0, 5: 1.0, 10: 1.0}
    assert found.chance == {1: 0.5, 5: 1.0, 10: 1.0}


def test_a_pair_that_is_named_twice_is_one() -> None:
    items, pairs = torch.tensor([[1.0], [2.0]]), torch.tensor([[0, 0]])
    assert recall(torch.ones(1, 1), items, pairs.repeat(2, 1)).chance == recall(torch.ones(1, 1), items, pairs).chance


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(ValueError, match=r"every query must have a positive, got none for \[1\]"):
        ranks(torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[0, 0]]))
    with pytest.raises(ValueError, match="queries and items must be finite"):
        ranks(torch.tensor([[torch.nan]]), torch.ones(2, 1), torch.tensor([[0, 0]]))


@pytest.mark.parametrize("count", range(2, 40))
def test_equal_items_have_equal_scores_wherever_they_stand(count: int) -> None:
    """The product of matrices had another last digit in the last column, which then was in front of the first."""
    queries, items = torch.randn(7, 24), torch.randn(count, 24)
    items = torch.cat([items, items[:1]])
    first, last = (ranks(queries, items, torch.tensor([[q, place] for q in range(7)])) for place in (0, count))
    assert torch.equal(last, first + 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_numbers_are_ranked_too(dtype: torch.dtype) -> None:
    items = torch.tensor([[0.5], [0.25], [0.5], [0.75]], dtype=dtype)
    assert ranks(torch.ones(4, 1, dtype=dtype), items, torch.arange(4)[:, None].expand(4, 2)).tolist() == [2, 4, 3, 1]
