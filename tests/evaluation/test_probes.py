import numpy as np
import pytest

from vitkit.evaluation import probes
from vitkit.evaluation.probes import (
    ProbeData,
    fit_probes,
    list_better_baselines,
    list_inputs_above_features,
    predict_by_neighbours,
    predict_most_frequent,
    score_predictions,
    score_splits,
    split_cross_validation,
)


def make_data(count: int, seed: int) -> ProbeData:
    """Return features that separate three classes, the first of which is the most frequent, and pixels of noise."""
    generator = np.random.default_rng(seed)
    labels = np.minimum(np.arange(count) % 4, 2) % 3
    features = np.eye(3)[labels] + generator.normal(scale=0.2, size=(count, 3))
    pixels = generator.integers(0, 256, (count, 12)).astype(np.uint8)
    return ProbeData(features.astype(np.float32), pixels, labels)


def test_probes_separate_features_but_not_noise() -> None:
    names = ["20-NN on features", "linear probe on features", "20-NN on pixels", "linear probe on pixels"]
    held_out = fit_probes(make_data(160, 0), make_data(90, 1))
    crossed = score_splits(split_cross_validation(make_data(160, 2), 1000))
    assert crossed.accuracy.pop("most frequent class") == 0.5
    for scores in (score_predictions(held_out, make_data(90, 1).labels).accuracy, crossed.accuracy):
        assert list(scores) == names
        assert min(scores["20-NN on features"], scores["linear probe on features"]) > 0.9
        assert max(scores["20-NN on pixels"], scores["linear probe on pixels"]) < 0.6


def test_most_frequent_class_is_taken_from_the_training_labels() -> None:
    assert predict_most_frequent([0, 1, 1, 2], 2)["most frequent class"].tolist() == [1, 1]
    assert predict_most_frequent([1, 0, 0, 1], 2)["most frequent class"].tolist() == [0, 0]  # a tie goes to the first


def test_macro_recall_is_the_mean_accuracy_of_the_classes_present() -> None:
    scores = score_predictions({"a": np.array([0, 0, 0, 1]), "b": np.array([2, 2, 2, 2])}, np.array([0, 0, 0, 2]))
    assert scores.accuracy == {"a": 0.75, "b": 0.25}
    assert scores.macro_recall == {"a": 0.5, "b": 0.5}


def test_baselines_above_the_model_are_named_with_both_values() -> None:
    baselines = {"most frequent class": 0.1, "20-NN on pixels": 0.931, "linear probe on pixels": 0.953}
    assert list_better_baselines("accuracy", 0.931, baselines) == [
        "accuracy: worse than linear probe on pixels, 93.10% against 95.30%"
    ]
    accuracy = {"20-NN on features": 0.5, "20-NN on pixels": 0.6, "linear probe on features": 0.7}
    assert list_inputs_above_features(accuracy) == [
        "20-NN on features: worse than 20-NN on pixels, 50.00% against 60.00%"
    ]


def test_neighbours_vote_by_cosine_similarity() -> None:
    training = np.array([[1.0, 0.0], [10.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.2, 1.0]])
    labels = np.array([0, 0, 1, 1, 1])
    queries = np.array([[5.0, 0.0], [0.0, 0.1]])
    assert predict_by_neighbours(training, labels, queries, k=5).tolist() == [0, 1]  # the three others are far
    assert predict_by_neighbours(training, labels, queries, k=100).tolist() == [0, 1]


def test_neighbours_do_not_depend_on_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    training, queries = (np.random.default_rng(seed).normal(size=(50, 8)) for seed in (0, 1))
    labels = np.arange(50) % 3
    at_once = predict_by_neighbours(training, labels, queries)
    monkeypatch.setattr(probes, "CELLS", 150)
    assert predict_by_neighbours(training, labels, queries).tolist() == at_once.tolist()
