"""Ranks by counting, against literal answers and against sorting."""

from itertools import combinations
from statistics import mean

import pytest
import torch

from vitkit.evaluation.recall import (
    compute_chance_recall,
    compute_median_rank,
    compute_miss_probability,
    compute_recall,
    pair_captions,
    rank_positives,
    retrieve,
)


def test_ranks_follow_karpathys_protocol() -> None:
    """Two images have two captions and a third has one; one-hot queries select literal scores."""
    scores = torch.tensor(
        [
            [0.9, 0.1, 0.8, 0.2, 0.3],  # the first picture's captions are 0 and 1: the first is retrieval at once
            [0.5, 0.6, 0.4, 0.3, 0.7],  # 2 and 3: behind 4, 1 and 0
            [0.4, 0.3, 0.2, 0.1, 0.0],  # 4: the last
        ]
    )
    pairs = torch.tensor([[0, 0], [0, 1], [1, 2], [1, 3], [2, 4]])
    assert rank_positives(torch.eye(3), scores.T, pairs).tolist() == [1, 4, 5]
    # Each caption has one picture; of column 1 it is the last of 0.1, 0.6, 0.3.
    assert rank_positives(scores.T, torch.eye(3), pairs.flip(1)).tolist() == [1, 3, 2, 1, 3]
    ranks = rank_positives(torch.eye(3), scores.T, pairs)
    assert [compute_recall(ranks, k) for k in (1, 4)] == pytest.approx([1 / 3, 2 / 3])
    assert compute_median_rank(ranks) == 4
    # Among 5 captions the first drawn is one of 2, 2, 1; of four drawn one of two is always there.
    chance = [compute_chance_recall(pairs, 3, 5, k) for k in (1, 4)]
    assert chance == pytest.approx([(0.4 + 0.4 + 0.2) / 3, (1 + 1 + 0.8) / 3])


def test_tie_ranks_the_first_item_first() -> None:
    items = torch.tensor([[0.5], [0.5], [0.7], [0.5]])
    pairs = torch.tensor([[0, 3], [1, 1], [2, 0], [3, 1], [3, 3]])
    assert rank_positives(torch.ones(4, 1), items, pairs).tolist() == [4, 3, 2, 3]


def test_median_rank_of_an_even_count_is_the_mean() -> None:
    assert compute_median_rank(torch.tensor([1, 2])) == 1.5


@pytest.mark.parametrize("tile", [1, 70, 2**24])
def test_ranks_do_not_depend_on_the_tile(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.evaluation.recall.TILE", tile)
    queries, items = torch.randn(23, 8), torch.randn(31, 8)
    pairs = torch.cat([torch.stack([torch.arange(23), torch.randint(31, (23,))], 1), torch.randint(23, (40, 2))])
    order = (queries @ items.T).argsort(1, descending=True).argsort(1)  # the place of each item
    expected = [min(order[q, i].item() for q, i in pairs.tolist() if q == query) + 1 for query in range(23)]
    assert rank_positives(queries, items, pairs).tolist() == expected


@pytest.mark.parametrize("k", [1, 2, 5])
def test_miss_probability_is_the_mean_over_all_draws(k: int) -> None:
    for positives in range(1, 6):
        hits = mean(any(item < positives for item in draw) for draw in combinations(range(5), k))
        assert 1 - compute_miss_probability(torch.tensor([positives]).double(), 5, k).item() == pytest.approx(hits)


def test_recall_at_more_than_all_items_is_one() -> None:
    ranks = rank_positives(torch.ones(1, 1), torch.tensor([[1.0], [2.0]]), torch.tensor([[0, 0]]))
    assert [compute_recall(ranks, k) for k in (1, 5, 10)] == [0.0, 1.0, 1.0]
    assert [compute_chance_recall(torch.tensor([[0, 0]]), 1, 2, k) for k in (1, 5, 10)] == [0.5, 1.0, 1.0]


def test_repeated_pairs_count_once() -> None:
    pairs = torch.tensor([[0, 0]])
    assert compute_chance_recall(pairs.repeat(2, 1), 1, 2, 1) == compute_chance_recall(pairs, 1, 2, 1)


def test_both_directions_have_the_same_metrics() -> None:
    """Two images share a caption, and the second has one of its own."""
    captions, pairs = pair_captions([("cat",), (" Cat", "dog")])
    retrieval = retrieve([4, 7], torch.eye(2), captions, torch.tensor([[0.0, 1.0], [1.0, 0.0]]), pairs)
    assert (captions, pairs.tolist()) == (("cat", "dog"), [[0, 0], [1, 0], [1, 1]])
    assert {way: ranks.tolist() for way, ranks in retrieval.ranks.items()} == {
        "image_to_text": [2, 1],
        "text_to_image": [1, 2],
    }
    numbers = retrieval.compute_metrics()
    assert [*numbers] == [
        "mean_recall",
        *(f"image_to_text_{name}" for name in ("R@1", "R@5", "R@10", "median_rank")),
        *(f"text_to_image_{name}" for name in ("R@1", "R@5", "R@10", "median_rank")),
        "chance",
    ]
    assert numbers["text_to_image_R@1"] == 0.5 and numbers["image_to_text_median_rank"] == 1.5
    assert numbers["mean_recall"] == pytest.approx(5 / 6)
    assert (numbers["chance"]["image_to_text_R@1"], numbers["chance"]["text_to_image_R@1"]) == (0.75, 0.75)
    assert retrieval.list_first_captions().tolist() == [0, 0]


def test_missing_positives_and_nan_are_refused() -> None:
    with pytest.raises(ValueError, match=r"every query must have a positive, got none for \[1\]"):
        rank_positives(torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[0, 0]]))
    with pytest.raises(ValueError, match="queries and items must be finite"):
        rank_positives(torch.tensor([[torch.nan]]), torch.ones(2, 1), torch.tensor([[0, 0]]))


@pytest.mark.parametrize("count", range(2, 40))
def test_equal_items_have_equal_scores(count: int) -> None:
    """A matrix product may differ in the last digit between columns, which would rank the last column first."""
    queries, items = torch.randn(7, 24), torch.randn(count, 24)
    items = torch.cat([items, items[:1]])
    first, last = (rank_positives(queries, items, torch.tensor([[q, place] for q in range(7)])) for place in (0, count))
    assert torch.equal(last, first + 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_ranked(dtype: torch.dtype) -> None:
    items = torch.tensor([[0.5], [0.25], [0.5], [0.75]], dtype=dtype)
    assert rank_positives(torch.ones(4, 1, dtype=dtype), items, torch.arange(4)[:, None].expand(4, 2)).tolist() == [
        2,
        4,
        3,
        1,
    ]
