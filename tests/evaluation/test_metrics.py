import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_fscore_support
from torch.testing import assert_close

from vitkit.evaluation import metrics


@pytest.fixture
def outputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and labels of 200 samples of 7 classes, the last of which has no support."""
    labels = torch.randint(6, (200,))
    return torch.randn(200, 7) + 2 * torch.nn.functional.one_hot(labels, 7), labels


def test_confusion_rows_are_labels() -> None:
    table = metrics.count_confusion(torch.eye(3)[[0, 2, 1, 1]], torch.tensor([0, 0, 1, 2]))
    assert table.tolist() == [[1, 0, 1], [0, 1, 0], [0, 1, 0]]


def test_class_scores_equal_those_of_scikit_learn(outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = outputs
    predicted = logits.argmax(dim=1)
    table = metrics.score_classes(logits, labels)
    expected = precision_recall_fscore_support(labels, predicted, labels=range(7), zero_division=0)
    for ours, theirs in zip(table, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)


def test_macro_means_ignore_classes_without_support(outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = outputs
    values, table = metrics.compute_metrics(logits, labels), metrics.score_classes(logits, labels)
    for name, column in zip(metrics.COLUMNS, table, strict=False):
        assert values[f"macro_{name}"] == pytest.approx(column[:6].mean().item())


def test_top1_and_top5_accuracy() -> None:
    logits = torch.tensor([[6.0, 5, 4, 3, 2, 1]] * 4)
    values = metrics.compute_metrics(logits, torch.tensor([0, 1, 4, 5]))
    assert (values["top1"], values["top5"]) == (0.25, 0.75)
    assert "top5" not in metrics.compute_metrics(logits[:, :5], torch.tensor([0, 1, 4, 4]))


def test_metric_is_added_by_a_function_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_samples(logits: torch.Tensor, labels: torch.Tensor) -> float:
        return float(len(labels))

    for table in ("ONE_LABEL", "MULTILABEL"):
        monkeypatch.setattr(metrics, table, {**getattr(metrics, table), "samples": count_samples})
    assert metrics.compute_metrics(torch.eye(3), torch.tensor([0, 1, 2]))["samples"] == 3.0
    assert metrics.compute_metrics(torch.eye(3), torch.eye(3).bool())["samples"] == 3.0


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    logits = torch.tensor([[0.8, 0.2]]).log().expand(10, 2)
    labels = torch.tensor([0] * 5 + [1] * 5)
    values = metrics.compute_metrics(logits, labels)
    assert values["mean_confidence"] == pytest.approx(0.8)
    assert values["expected_calibration_error"] == pytest.approx(0.3)
    assert values["negative_log_likelihood"] == pytest.approx(-np.log([0.8, 0.2]).mean())


def test_reliability_bins_give_the_calibration_error(outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = outputs
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    bins = metrics.compute_reliability(confidence, predicted == labels)
    error = (bins.predictions * (bins.confidence - bins.accuracy).abs()).sum() / 200
    assert bins.predictions.sum() == 200
    assert metrics.compute_metrics(logits, labels)["expected_calibration_error"] == pytest.approx(
        error.item(), abs=1e-5
    )


@pytest.mark.parametrize("scale", [0.1, 30.0])  # scores that all lie in 0..1, and large ones
def test_average_precision_equals_that_of_scikit_learn(scale: float) -> None:
    labels = torch.rand(100, 4) > 0.6
    labels[:, 3] = False
    logits = (torch.randn(100, 4) + labels) * scale
    values = metrics.compute_metrics(logits, labels)
    each = [average_precision_score(labels[:, label], logits[:, label]) for label in range(3)]
    assert_close(metrics.compute_average_precision(logits, labels), torch.tensor([*each, 0.0]), rtol=0, atol=1e-5)
    assert values["mean_average_precision"] == pytest.approx(np.mean(each), abs=1e-5)
    assert metrics.compute_frequency_baseline(labels) == pytest.approx(labels[:, :3].float().mean().item())
    means = {
        average: precision_recall_fscore_support(labels[:, :3], logits[:, :3] > 0, average=average)[:3]
        for average in ("macro", "micro")
    }
    assert [values[f"macro_{name}"] for name in metrics.COLUMNS] == pytest.approx(means["macro"])
    present = metrics.compute_metrics(logits[:, :3], labels[:, :3])
    assert [present[f"micro_{name}"] for name in metrics.COLUMNS] == pytest.approx(means["micro"])
