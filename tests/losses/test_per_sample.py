import pytest
import timm.loss
import torch
from torch.testing import assert_close

from vitkit.losses import binary_cross_entropy, cross_entropy


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(7, 5, dtype=torch.float64)


def test_cross_entropy_of_soft_targets_equals_timm(logits: torch.Tensor) -> None:
    targets = torch.rand(7, 5, dtype=torch.float64)
    targets = targets / targets.sum(1, keepdim=True)
    assert_close(cross_entropy(logits, targets).mean(), timm.loss.SoftTargetCrossEntropy()(logits, targets))


def test_binary_cross_entropy_equals_timm(logits: torch.Tensor) -> None:
    targets = torch.randint(2, (7, 5)).double()
    expected = timm.loss.BinaryCrossEntropy(smoothing=0.0)(logits, targets)
    assert_close(binary_cross_entropy(logits, targets).mean(), expected)


def test_positive_weights_scale_positive_targets() -> None:
    logits, targets = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    assert_close(
        binary_cross_entropy(logits, targets, torch.tensor([3.0, 5.0])), torch.tensor([2.0]) * torch.tensor(2.0).log()
    )
