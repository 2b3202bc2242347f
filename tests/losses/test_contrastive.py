"""Contrastive losses equal open_clip's, values by hand, and their sums over tiles."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from open_clip.loss import ClipLoss, SigLipLoss
from torch import Tensor
from torch.testing import assert_close

from vitkit.losses import sigmoid, softmax
from vitkit.models import Pair

Criterion = Callable[[Pair, Pair, Tensor, Tensor], Tensor]
EACH = torch.arange(7)


def draw_leaves(rows: int = 7, bias: float = -2.0) -> list[Tensor]:
    """Return image and text features, the scale and the bias."""
    features = [torch.randn(rows, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    scalars = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (9.0, bias)]
    return features + scalars


def make_pair(values: list[Tensor]) -> Pair:
    image, text, scale, bias = values
    return Pair(F.normalize(image, dim=1), F.normalize(text, dim=1), scale, bias)


def compute_gradients(loss: Tensor, values: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    grads = torch.autograd.grad(loss, values, allow_unused=True, retain_graph=True)
    return loss.detach(), [torch.zeros_like(v) if g is None else g for v, g in zip(values, grads, strict=True)]


def test_softmax_without_extra_positives_equals_open_clip() -> None:
    values = draw_leaves()
    pair = make_pair(values)
    ours = compute_gradients(softmax(pair, pair, EACH, EACH) / 7, values)
    assert_close(ours, compute_gradients(ClipLoss()(pair.image, pair.text, pair.scale), values))


def test_sigmoid_without_extra_positives_equals_open_clip() -> None:
    values = draw_leaves()
    pair = make_pair(values)
    ours = compute_gradients(sigmoid(pair, pair, EACH, EACH) / 7, values)
    assert_close(ours, compute_gradients(SigLipLoss()(pair.image, pair.text, pair.scale, pair.bias), values))


def test_targets_are_shared_among_positives() -> None:
    """Two images and two texts are positives of each other, a third pair is apart; values by hand."""
    image = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    pair = Pair(image, image, torch.tensor(2.0), torch.tensor(-1.0))
    positives = torch.tensor([4, 4, 1])
    both, single = math.log(2 * math.exp(2) + 1) - 2, math.log(math.exp(2) + 2) - 2
    assert softmax(pair, pair, positives, positives).item() == pytest.approx(2 * both + single, rel=1e-6)
    right, wrong = math.log1p(math.exp(-1)), math.log1p(math.exp(-1))  # logits 1 and -1
    assert sigmoid(pair, pair, positives, positives).item() == pytest.approx(5 * right + 4 * wrong, rel=1e-6)
    apart = torch.tensor([4, 5, 1])
    assert softmax(pair, pair, apart, apart).item() == pytest.approx(2 * both + single, rel=1e-6)  # equal images
    assert sigmoid(pair, pair, apart, apart).item() == pytest.approx(5 * right + 4 * wrong + 2, rel=1e-6)


@pytest.mark.parametrize("loss", [softmax, sigmoid])
@pytest.mark.parametrize("tile", [1, 14, 21])
def test_tiling_keeps_loss_and_gradients(loss: Criterion, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values, positives = draw_leaves(), torch.tensor([0, 1, 0, 2, 2, 2, 3])
    pair = make_pair(values)
    whole = compute_gradients(loss(pair, pair, positives, positives), values)
    monkeypatch.setattr("vitkit.losses.tiles.TILE", tile)
    tiled = make_pair(values)
    assert_close(compute_gradients(loss(tiled, tiled, positives, positives), values), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", [softmax, sigmoid])
def test_losses_of_row_shares_sum_to_the_whole(loss: Criterion) -> None:
    values, positives = draw_leaves(), torch.tensor([0, 1, 0, 2, 2, 2, 3])
    pair = make_pair(values)
    whole = compute_gradients(loss(pair, pair, positives, positives), values)
    parts = torch.zeros((), dtype=torch.float64)
    for rows in (slice(0, 1), slice(1, 5), slice(5, 7), slice(7, 7)):
        share = pair._replace(image=pair.image[rows], text=pair.text[rows])
        parts = parts + loss(share, pair, positives[rows], positives)
    assert_close(compute_gradients(parts, values), whole, rtol=1e-10, atol=1e-12)


def test_softmax_is_independent_of_bias() -> None:
    values = draw_leaves()
    pair = make_pair(values)
    shifted = pair._replace(bias=pair.bias + 3)
    assert_close(softmax(pair, pair, EACH, EACH), softmax(shifted, shifted, EACH, EACH), rtol=0, atol=0)
