import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_fscore_support
from torch.testing import assert_close

from vitkit.evaluation import metrics


@pytest.fixture
def answers() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of 200 pictures of 7 classes, the last of which is in no picture."""
    labels = torch.randint(6, (200,))
    return torch.randn(200, 7) + 2 * torch.nn.functional.one_hot(labels, 7), labels


def test_counts_are_labels_by_predictions() -> None:
    table = metrics.count_confusion(torch.eye(3)[[0, 2, 1, 1]], torch.tensor([0, 0, 1, 2]))
    assert table.tolist() == [[1, 0, 1], [0, 1, 0], [0, 1, 0]]


def test_precision_recall_and_f1_are_scikit_learn_s(answers: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = answers
    predicted = logits.argmax(dim=1)
    table = metrics.tabulate(logits, labels)
    expected = precision_recall_fscore_support(labels, predicted, labels=range(7), zero_division=0)
    for ours, theirs in zip(table, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)


def test_macro_means_are_over_the_classes_that_are_there(answers: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = answers
    measured, table = metrics.measure(logits, labels), metrics.tabulate(logits, labels)
    for name, column in zip(metrics.COLUMNS, table, strict=False):
        assert measured[f"macro_{name}"] == pytest.approx(column[:6].mean().item())


def test_accuracy_counts_the_first_and_the_first_five() -> None:
    logits = torch.tensor([[6.0, 5, 4, 3, 2, 1]] * 4)
    found = metrics.measure(logits, torch.tensor([0, 1, 4, 5]))
    assert (found["top1"], found["top5"]) == (0.25, 0.75)
    assert "top5" not in metrics.measure(logits[:, :5], torch.tensor([0, 1, 4, 4]))


def test_metric_is_a_function_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_samples(logits: torch.Tensor, labels: torch.Tensor) -> float:
        return float(len(labels))

    for table in ("ONE_LABEL", "MULTILABEL"):
        monkeypatch.setattr(metrics, table, {**getattr(metrics, table), "samples": count_samples})
    assert metrics.measure(torch.eye(3), torch.tensor([0, 1, 2]))["samples"] == 3.0
    assert metrics.measure(torch.eye(3), torch.eye(3).bool())["samples"] == 3.0


def test_calibration_is_the_gap_between_sure_and_right() -> None:
    logits = torch.tensor([[0.8, 0.2]]).log().expand(10, 2)
    labels = torch.tensor([0] * 5 + [1] * 5)
    found = metrics.measure(logits, labels)
    assert found["mean_confidence"] == pytest.approx(0.8)
    assert found["expected_calibration_error"] == pytest.approx(0.3)
    assert found["negative_log_likelihood"] == pytest.approx(-np.log([0.8, 0.2]).mean())


def test_bins_of_confidence_add_up_to_the_calibration_error(answers: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = answers
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    bins = metrics.reliability(confidence, predicted == labels)
    error = (bins.predictions * (bins.confidence - bins.accuracy).abs()).sum() / 200
    assert bins.predictions.sum() == 200
    assert metrics.measure(logits, labels)["expected_calibration_error"] == pytest.approx(error.item(), abs=1e-5)


@pytest.mark.parametrize("scale", [0.1, 30.0])  # scores that all lie in 0..1, and large ones
def test_average_precision_is_scikit_learn_s(scale: float) -> None:
    labels = torch.rand(100, 4) > 0.6
    labels[:, 3] = False
    logits = (torch.randn(100, 4) + labels) * scale
    found = metrics.measure(logits, labels)
    each = [average_precision_score(labels[:, label], logits[:, label]) for label in range(3)]
    assert_close(metrics.average_precision(logits, labels), torch.tensor([*each, 0.0]), rtol=0, atol=1e-5)
    assert found["mean_average_precision"] == pytest.approx(np.mean(each), abs=1e-5)
    assert metrics.class_frequencies(labels) == pytest.approx(labels[:, :3].float().mean().item())
    means = {
        average: precision_recall_fscore_support(labels[:, :3], logits[:, :3] > 0, average=average)[:3]
        for average in ("macro", "micro")
    }
    assert [found[f"macro_{name}"] for name in metrics.COLUMNS] == pytest.approx(means["macro"])
    three = metrics.measure(logits[:, :3], labels[:, :3])
    assert [three[f"micro_{name}"] for name in metrics.COLUMNS] == pytest.approx(means["micro"])
