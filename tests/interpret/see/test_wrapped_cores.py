"""Capture and edits of layers whose core wraps another, has no softmax, has several, or is shared."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.interpret.measure.ablation import ablate_heads
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.coverage import coverage
from vitkit.interpret.see.edits import Head, attend_uniformly, edit, knockout
from vitkit.interpret.see.layers import CaptureError
from vitkit.models import ViT
from vitkit.nn import Attention, Cache, Encoder, ExplicitCore, FusedCore, LinearCore, MeasuredCore, WindowCore, masks

Randomise = Callable[[nn.Module], nn.Module]
B, T, D, H, DH, WINDOW = 2, 9, 24, 3, 8, 3
LAYER = "blocks.1.attn.f"


class Keyword(nn.Module):
    """Hands on its arguments by name, and hides the last key."""

    def __init__(self, inner: Callable[[], nn.Module] = FusedCore) -> None:
        super().__init__()
        self.inner = inner()

    def forward(self, q, k, v, mask=None, bias=None, causal=False, scale=None, dropout=0.0):
        first = torch.arange(k.shape[2]) < k.shape[2] - 1
        mask = masks.join(mask, first[None, None, None])
        return self.inner(q, k=k, v=v, mask=mask, bias=bias, causal=causal, scale=scale, dropout=dropout)


class Mixed(nn.Module):
    """The mean of a window and of all keys."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = WindowCore(size=WINDOW), MeasuredCore()

    def forward(self, *arguments):
        return (self.near(*arguments) + self.far(*arguments)) / 2


class Choice(nn.Module):
    """Near or far by the number of keys, as MeasuredCore chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = WindowCore(size=WINDOW), MeasuredCore()

    def forward(self, q, k, *rest):
        return (self.near if k.shape[2] > 4 else self.far)(q, k, *rest)


def trunk(core: Callable[[], nn.Module], **options: object) -> Encoder:
    return Encoder(D, 2, H, attention=partial(Attention, core=core), **options)


@pytest.fixture
def tokens() -> tuple[Tensor, Tensor]:
    return torch.randn(B, T, D, dtype=torch.float64), torch.arange(T)[None, :, None]


def near() -> Tensor:
    places = torch.arange(T)[None, :, None]
    return masks.window(places, places, WINDOW - 1)


def plain_with_mask(model: Encoder, **options: object) -> Encoder:
    """The same weights over the core that is not wrapped, to be given the mask."""
    plain = Encoder(D, 2, H, **options).double().eval()
    plain.load_state_dict(model.state_dict())
    return plain


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_weights_of_a_window_are_those_of_its_mask(causal: bool, randomise: Randomise, tokens) -> None:
    model = randomise(trunk(partial(WindowCore, size=WINDOW), causal=causal))
    plain = plain_with_mask(model, causal=causal)
    with capture(model) as attention:
        watched = model(*tokens)
    assert torch.equal(watched, model(*tokens))
    with capture(plain) as expected:
        plain(*tokens, mask=near())
    assert list(attention) == ["blocks.0.attn.f", LAYER]
    for name, weights in attention.items():
        assert_close(weights.weights, expected[name].weights)
        assert not weights.weights.masked_fill(near(), 0).any()
        assert_close(weights.weights.sum(-1), torch.ones(B, H, T).double())


@torch.no_grad()
def test_the_mask_of_a_pass_and_that_of_the_wrapper_are_both_seen(randomise: Randomise, tokens) -> None:
    """With a cache too; handed on by position or by name."""
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[0, :2] = False
    window = randomise(trunk(partial(WindowCore, size=WINDOW), causal=True))
    with capture(window, -1) as attention:
        window(*tokens, mask=masks.padding(valid))
    visible = (near() & masks.padding(valid) & masks.lower_right(T, T, valid.device)).expand(B, H, T, T)
    assert torch.equal(attention.get_layer(0).weights > 0, visible)
    cache, x = Cache(T, valid), tokens[0]
    with capture(window, -1) as parts:
        for part, positions in zip(x.split([6, 3], 1), tokens[1].split([6, 3], 1), strict=True):
            window(part, positions, cache=cache)
    assert torch.equal(parts.get_layer(1).weights > 0, visible[:, :, 6:])
    named = randomise(trunk(Keyword))
    with capture(named, -1) as attention:
        named(*tokens)
    assert torch.equal((attention.get_layer(0).weights > 0).all(2).all(1), (torch.arange(T) < T - 1).expand(B, T))


def test_gradients_of_the_weights_of_a_window(randomise: Randomise, tokens) -> None:
    model = randomise(trunk(partial(WindowCore, size=WINDOW)))
    plain = plain_with_mask(model)
    with capture(model, gradient=True) as attention:
        score = model(*tokens).square().sum()
    with capture(plain, gradient=True) as expected:
        other = plain(*tokens, mask=near()).square().sum()
    assert_close(score, other)
    result = torch.autograd.grad(score, [own.weights for own in attention.values()])
    assert_close(result, torch.autograd.grad(other, [own.weights for own in expected.values()]))


@torch.no_grad()
@pytest.mark.parametrize("core", [partial(WindowCore, size=WINDOW), Keyword, partial(Keyword, inner=ExplicitCore)])
def test_edit_of_a_wrapped_core_equals_zeroed_columns(core, randomise: Randomise, tokens) -> None:
    model = randomise(trunk(core))
    before = model(*tokens)
    with edit(model, Head(LAYER, 1)):
        result = model(*tokens)
    assert torch.equal(model(*tokens), before)
    model.get_submodule(LAYER).out.weight[:, DH : 2 * DH] = 0
    assert_close(result, model(*tokens), rtol=0, atol=1e-12)
    assert (result - before).abs().max() > 0.01


@torch.no_grad()
def test_uniform_and_knockout_stay_within_a_window(randomise: Randomise, tokens) -> None:
    model = randomise(trunk(partial(WindowCore, size=WINDOW)))
    plain = plain_with_mask(model)
    heads = [Head(LAYER, head, attend_uniformly) for head in range(H)]
    with edit(model, *heads), edit(plain, *heads):
        assert_close(model(*tokens), plain(*tokens, mask=near()))
    away = torch.arange(T) == 4
    with knockout(model, LAYER, keys=away), capture(model, LAYER) as attention:
        result = model(*tokens)
    with knockout(plain, LAYER, keys=away):
        assert_close(result, plain(*tokens, mask=near()))
    assert torch.equal(attention.get_layer(0).weights > 0, (near() & ~away).expand(B, H, T, T))


@torch.no_grad()
def test_ablation_of_a_windowed_model_is_zeroing_its_columns(randomise: Randomise) -> None:
    model = randomise(ViT(trunk(partial(WindowCore, size=WINDOW)), (16, 24), (8, 8), 4))
    images, labels = torch.randn(5, 3, 16, 24).double(), torch.randint(4, (5,))
    result = ablate_heads(model, model, [(images, labels)], [f"encoder.{LAYER}"]).removed["logit"][0]
    before, out = model(images), model.get_submodule(f"encoder.{LAYER}").out
    whole = out.weight.clone()
    for head in range(H):
        out.weight[:, head * DH : (head + 1) * DH] = 0
        assert_close(result.mean[head], (model(images) - before)[torch.arange(5), labels].mean())
        out.weight.copy_(whole)


def test_a_core_without_a_softmax_is_refused_by_name(randomise: Randomise, tokens) -> None:
    model = randomise(Encoder(D, 2, H))
    model.blocks[1].attn.f.core = LinearCore()
    reason = r"blocks\.1\.attn\.f: its core LinearCore has no softmax.*name others, such as blocks\.0\.attn\.f"
    with pytest.raises(CaptureError, match=reason), capture(model):
        model(*tokens)
    with pytest.raises(CaptureError, match="its core LinearCore"), edit(model, Head(LAYER, 0)):
        model(*tokens)
    with capture(model, 0) as attention:
        model(*tokens)
    assert list(attention) == ["blocks.0.attn.f"]
    first, second = coverage(model, *tokens)
    assert (first.kind, first.reason) == ("kernel", None)
    assert second.reason == "its core LinearCore has no softmax: there are no weights"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@torch.no_grad()
def test_several_softmaxes_in_one_pass_are_refused_and_one_of_several_is_not(randomise: Randomise, tokens) -> None:
    mixed = randomise(trunk(Mixed))
    reason = r"blocks\.0\.attn\.f cannot be captured: its core Mixed computes several softmaxes in a pass"
    with pytest.raises(CaptureError, match=reason), capture(mixed):
        mixed(*tokens)
    with pytest.raises(CaptureError, match=reason), edit(mixed, Head("blocks.0.attn.f", 0)):
        mixed(*tokens)
    assert all(layer.reason and "several softmaxes" in layer.reason for layer in coverage(mixed, *tokens))
    choice = randomise(trunk(Choice))
    with capture(choice, -1) as attention:
        choice(*tokens)
        choice(tokens[0][:, :4], tokens[1][:, :4])
    assert torch.equal(attention.get_layer(0).weights > 0, near().expand(B, H, T, T))
    assert attention.get_layer(1).weights.all()


@torch.no_grad()
def test_shared_core_is_captured_for_each_layer(randomise: Randomise, tokens) -> None:
    core = WindowCore(size=WINDOW)
    shared, alone = randomise(trunk(lambda: core)), randomise(trunk(partial(WindowCore, size=WINDOW)))
    alone.load_state_dict(shared.state_dict())
    with capture(shared) as attention, capture(shared, -1) as last:
        shared(*tokens)
    with capture(alone) as expected:
        alone(*tokens)
    assert list(attention) == list(expected) and list(last) == [LAYER]
    for name, weights in expected.items():
        assert_close(attention[name].weights, weights.weights)
    assert_close(last.get_layer(0).weights, expected.get_layer(-1).weights)
    with edit(shared, Head(LAYER, 1)), edit(alone, Head(LAYER, 1)):
        assert_close(shared(*tokens), alone(*tokens))
