import numpy as np
import pytest

from vitkit.evaluation import probes
from vitkit.evaluation.probes import (
    Frozen,
    fit_probes,
    predict_by_neighbours,
    score_most_frequent,
    score_splits,
    split_cross_validation,
)


def frozen(count: int, seed: int) -> Frozen:
    """Return features that tell three classes apart, the first of which is the most frequent, and pixels of noise."""
    generator = np.random.default_rng(seed)
    labels = np.minimum(np.arange(count) % 4, 2) % 3
    pooled = np.eye(3)[labels] + generator.normal(scale=0.2, size=(count, 3))
    pixels = generator.integers(0, 256, (count, 12)).astype(np.uint8)
    return Frozen(pooled.astype(np.float32), pixels, labels)


def test_probes_find_what_is_there_and_nothing_else() -> None:
    names = ["20-NN on features", "linear on features", "20-NN on pixels", "linear on pixels"]
    held_out = fit_probes(frozen(160, 0), frozen(90, 1))
    crossed = score_splits(split_cross_validation(frozen(160, 2), 1000))
    assert crossed.pop("most frequent class") == 0.5
    for scores in (held_out, crossed):
        assert list(scores) == names
        assert min(scores["20-NN on features"], scores["linear on features"]) > 0.9
        assert max(scores["20-NN on pixels"], scores["linear on pixels"]) < 0.6


def test_most_frequent_class_is_that_of_the_training_part() -> None:
    assert score_most_frequent([0, 1, 1, 2], [0, 0, 0, 1]) == 0.25
    assert score_most_frequent([1, 0, 0, 1], [0, 0, 0, 1]) == 0.75  # of equals the first


def test_neighbours_vote_by_angle_the_nearer_the_more() -> None:
    known = np.array([[1.0, 0.0], [10.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.2, 1.0]])
    labels = np.array([0, 0, 1, 1, 1])
    asked = np.array([[5.0, 0.0], [0.0, 0.1]])
    assert predict_by_neighbours(known, labels, asked, k=5).tolist() == [0, 1]  # the three others are far
    assert predict_by_neighbours(known, labels, asked, k=100).tolist() == [0, 1]


def test_neighbours_asked_in_parts_are_those_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known, asked = (np.random.default_rng(seed).normal(size=(50, 8)) for seed in (0, 1))
    labels = np.arange(50) % 3
    at_once = predict_by_neighbours(known, labels, asked)
    monkeypatch.setattr(probes, "CELLS", 150)
    assert predict_by_neighbours(known, labels, asked).tolist() == at_once.tolist()
