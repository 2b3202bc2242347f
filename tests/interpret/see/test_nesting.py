"""Captures, edits and knockouts inside each other."""

from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.edits import Head, attend_uniformly, edit, knockout
from vitkit.interpret.see.layers import find_attention_layers
from vitkit.nn import Attention, Encoder

Randomise = Callable[[nn.Module], nn.Module]
B, T, D, H = 3, 7, 32, 4
FIRST, SECOND = torch.arange(T) < 2, torch.arange(T) == 4
KINDS = ("vitkit", "grouped", "kernel", "softmax", "multihead")


class Multihead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.head = nn.MultiheadAttention(D, H, batch_first=True), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attn(x, x, x)[0])


class VitkitAttention(nn.Module):
    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        self.encoder = Encoder(D, 1, H, attention=partial(Attention, kv_heads=kv_heads))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, torch.zeros(1, T, 1).to(x))


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, randomise: Randomise) -> nn.Module:
    if request.param in ("kernel", "softmax"):
        result = timm.layers.Attention(D, H)
        result.fused_attn = request.param == "kernel"
        return randomise(nn.Sequential(result))
    made = {"vitkit": lambda: VitkitAttention(H), "grouped": lambda: VitkitAttention(2), "multihead": Multihead}
    return randomise(made[request.param]())


@pytest.fixture
def x() -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64)


@torch.no_grad()
def test_knockouts_inside_knockouts_add_up(model: nn.Module, x: Tensor) -> None:
    with knockout(model, keys=FIRST | SECOND):
        together = model(x)
    with knockout(model, keys=FIRST), knockout(model, keys=SECOND.expand(B, T)):
        assert_close(model(x), together)
    assert (model(x) - together).abs().max() > 1e-3


@torch.no_grad()
def test_capture_inside_a_knockout_excludes_hidden_keys(model: nn.Module, x: Tensor) -> None:
    with capture(model) as plain:
        model(x)
    with capture(model) as outer, knockout(model, keys=FIRST), capture(model) as inner:
        model(x)
    weights = plain.get_layer(0).weights
    assert_close(outer.get_layer(0).weights, weights)
    rest = weights.masked_fill(FIRST, 0)
    assert_close(inner.get_layer(0).weights, rest / rest.sum(-1, keepdim=True))


@torch.no_grad()
def test_uniform_inside_a_knockout_ignores_hidden_keys(model: nn.Module, x: Tensor) -> None:
    (layer,) = find_attention_layers(model)
    heads = [Head(layer, head, attend_uniformly) for head in range(H)]
    with knockout(model, keys=FIRST), edit(model, *heads):
        result = model(x)
    changed = x.clone()
    with edit(model, *heads):
        plain = model(x)
    assert (result - plain).abs().max() > 1e-3
    changed[:, :2] += 1  # what is not seen does not count
    with knockout(model, keys=FIRST), edit(model, *heads):
        assert_close(model(changed)[:, 2:], result[:, 2:])


def test_gradient_inside_a_knockout_is_of_the_masked_model(model: nn.Module, x: Tensor) -> None:
    with knockout(model, keys=FIRST):
        expected = model(x)
        with capture(model, gradient=True) as attention:
            result = model(x)
    assert_close(result, expected)
    (gradient,) = torch.autograd.grad(result.square().sum(), attention.get_layer(0).weights)
    assert gradient.any()


def test_an_edit_inside_a_capture_with_gradient_counts(model: nn.Module, x: Tensor) -> None:
    (layer,) = find_attention_layers(model)
    with edit(model, Head(layer, 1)):
        expected = model(x)
    with capture(model, gradient=True) as attention, edit(model, Head(layer, 1)):
        result = model(x)
    assert_close(result, expected)
    if isinstance(model, Multihead):
        return  # what its edit leaves as it is, is computed anew, and no gradient reaches the weights
    (gradient,) = torch.autograd.grad(result.square().sum(), attention.get_layer(0).weights)
    assert not gradient[:, 1].any()
    assert gradient[:, 0].any()


@torch.no_grad()
def test_captures_inside_captures_each_see_a_layer_once(model: nn.Module, x: Tensor) -> None:
    with capture(model) as outer, capture(model) as inner:
        model(x)
    assert list(outer) == list(inner) == list(find_attention_layers(model))
    assert_close(outer.get_layer(0).weights, inner.get_layer(0).weights)


def test_undoing_an_outer_edit_is_refused(model: nn.Module, x: Tensor) -> None:
    (layer,) = find_attention_layers(model)
    message = f"must be around an edit of the same layer, got it inside an edit of {layer}"
    with edit(model, Head(layer, 0)):
        with pytest.raises(ValueError, match=message), knockout(model, keys=FIRST):
            pass
        with pytest.raises(ValueError, match=message), capture(model, gradient=True):
            pass
        model(x)
    with capture(model, gradient=True):  # and no longer
        model(x)
