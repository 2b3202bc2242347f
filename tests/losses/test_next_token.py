from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from vitkit.losses import next_token, tiles
from vitkit.models import TextDecoder
from vitkit.nn import Encoder

TARGETS = torch.tensor([[3, 8, -100, 0], [-100, -100, 5, 8]])


def draw_features() -> Tensor:
    return torch.randn(2, 4, 16, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def decoder(randomise: Callable) -> TextDecoder:
    return randomise(TextDecoder(Encoder(16, 1, 2, causal=True), 9, 4))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_value_and_gradients_equal_cross_entropy(
    rows: int, smoothing: float, decoder: TextDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "TILE", rows * 9)
    x, table = draw_features(), decoder.embed.tokens.weight
    total, count = next_token(x, TARGETS, decoder.logits, smoothing=smoothing)
    expected = F.cross_entropy(
        decoder.logits(x).flatten(0, 1), TARGETS.flatten(), reduction="sum", label_smoothing=smoothing
    )
    assert count == 5
    assert_close(total, expected)
    assert_close(torch.autograd.grad(total, [x, table]), torch.autograd.grad(expected, [x, table]))


def test_logits_of_counted_targets_are_computed_in_parts(decoder: TextDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", 2 * 9)
    rows = []

    def logits(features: Tensor) -> Tensor:
        rows.append(len(features))
        return decoder.logits(features)

    total, _ = next_token(draw_features(), TARGETS, logits)
    assert rows == [1, 2, 2, 1]  # the first is for the size of the vocabulary
    total.backward()
    assert sorted(rows[4:]) == [1, 2, 2]  # again, instead of storing them


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_without_targets_is_zero_with_zero_gradients(smoothing: float, decoder: TextDecoder) -> None:
    x, table = draw_features(), decoder.embed.tokens.weight
    total, count = next_token(x, torch.full_like(TARGETS, -100), decoder.logits, smoothing=smoothing)
    assert (total.item(), count) == (0, 0)
    assert not any(gradient.any() for gradient in torch.autograd.grad(total, [x, table]))


def test_logits_of_16_bits_are_summed_in_float32() -> None:
    x = torch.randn(1, 400, 16).bfloat16()
    matrix = torch.randn(30, 16).bfloat16()
    targets = torch.randint(30, (1, 400))
    total, _ = next_token(x, targets, lambda features: features @ matrix.T)
    assert total.dtype == torch.float32
    assert_close(total, F.cross_entropy((x @ matrix.T)[0].float(), targets[0], reduction="sum"))
