"""Relevance against float64 references that compute attention, its gradients and the rules step by step."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import open_clip
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit import CLIP, Attend, Attention, Encoder, First, Mean, Rotary, TextTower, ViT
from vitkit.interpret.maps.relevance import (
    compute_gradient_attention,
    cross_relevance,
    input_relevance,
    relevance,
    text_relevance,
)
from vitkit.interpret.maps.rollout import select_pooled_row
from vitkit.interpret.see.layers import find_attention_layers
from vitkit.nn import EndOfText, Last

Randomise = Callable[[nn.Module], nn.Module]
SIZE = (24, 32)
TARGETS = torch.tensor([1, 4])


def images(channels: int = 3) -> Tensor:
    return torch.randn(2, channels, *SIZE, dtype=torch.float64)


def vit(pool: Callable[[int, int], nn.Module] = First, **options: Any) -> ViT:
    return ViT(Encoder(16, 3, 4, **options), SIZE, (8, 8), 5, prefix=2, pool=pool)


class RetainingCore(nn.Module):
    """Attention by hand, softmax(q k' / sqrt(Dh)) v, whose weights keep their gradient."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores + torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype).triu(1)
        self.weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        self.weights.retain_grad()
        return self.weights @ v


def replace_cores(model: nn.Module) -> dict[str, RetainingCore]:
    """Every core replaced by the one above."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    for module in layers.values():
        module.core = RetainingCore(module.causal)
    return {name: module.core for name, module in layers.items()}


def rule_5(weights: Tensor) -> Tensor:
    """Of one picture: (H, T, S) to (T, S)."""
    assert weights.grad is not None
    return torch.stack([(weights.grad[head] * weights[head]).clamp(min=0) for head in range(len(weights))]).mean(0)


def by_hand(layers: list[Tensor], gradients: list[Tensor], picture: int) -> Tensor:
    result = torch.eye(layers[0].shape[-1], dtype=torch.float64)
    for weights, gradient in zip(layers, gradients, strict=True):
        product = (weights[picture] * gradient[picture]).clamp(min=0).mean(0)
        result = result + product @ result
    return result.detach()


def backward(outputs: Tensor, targets: Tensor) -> None:
    sum(outputs[picture, target] for picture, target in enumerate(targets.tolist())).backward()


@pytest.mark.parametrize("start", [0, 1, -1])
@pytest.mark.parametrize("pool", [First, Mean])
def test_relevance_of_a_vit_is_the_reference(
    randomise: Randomise, pool: Callable[[int, int], nn.Module], start: int
) -> None:
    model, pixels = randomise(vit(pool, position=partial(Rotary, axes=2))), images()
    found = relevance(model, model, pixels, TARGETS, list(find_attention_layers(model)), start=start)
    cores = list(replace_cores(model).values())
    backward(model(pixels), TARGETS)
    layers, gradients = [core.weights for core in cores][start:], [core.weights.grad for core in cores][start:]
    expected = torch.stack([by_hand(layers, gradients, picture) for picture in range(2)])
    assert (expected - torch.eye(14)).abs().max() > 1e-5
    assert_close(found - torch.eye(14), expected - torch.eye(14), rtol=1e-6, atol=1e-12)


def test_relevance_of_an_attending_pool_is_its_row_of_the_normalised_tokens(randomise: Randomise) -> None:
    model, pixels = randomise(vit(partial(Attend, heads=2))), images()
    found = relevance(model, model, pixels, TARGETS, list(find_attention_layers(model)))
    *cores, pool = replace_cores(model).values()
    backward(model(pixels), TARGETS)
    for picture in range(2):
        tokens = by_hand([core.weights for core in cores], [core.weights.grad for core in cores], picture)
        added = tokens - torch.eye(14)
        tokens = added / added.sum(1, keepdim=True) + torch.eye(14)
        row = (pool.weights[picture] * pool.weights.grad[picture]).clamp(min=0).mean(0) @ tokens
        assert_close(found[picture], row.detach())
    assert_close(select_pooled_row(model, found), found[:, 0])


def test_relevance_of_timm_is_the_reference(randomise: Randomise) -> None:
    model = randomise(
        timm.create_model("vit_tiny_patch16_224", depth=3, embed_dim=24, img_size=(32, 48), num_classes=5)
    )
    pixels = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    found = relevance(model, model, pixels, TARGETS, [f"blocks.{block}.attn" for block in range(3)])
    layers: list[Tensor] = []
    for block in model.blocks:  # unfused, in the module's own code; a dropout of 0 passes the weights
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(
            lambda module, args, output: (output.retain_grad(), layers.append(output))[0]
        )
    backward(model(pixels), TARGETS)
    expected = [by_hand(layers, [layer.grad for layer in layers], picture) for picture in range(2)]
    assert_close(found, torch.stack(expected))


def test_relevance_of_open_clip_is_that_of_its_own_weights(randomise: Randomise) -> None:
    tower = open_clip.transformer.VisionTransformer((32, 48), 16, 24, 2, 3, 2.0, output_dim=5)
    model, pixels = randomise(tower), torch.randn(2, 3, 32, 48, dtype=torch.float64)
    names = list(find_attention_layers(model))
    found = relevance(model, model, pixels, TARGETS, names)
    x = model._embeds(pixels)
    layers: list[Tensor] = []
    for block in model.transformer.resblocks:
        q = k = v = block.ln_1(x)
        weights = block.attn(q, k, v, need_weights=True, average_attn_weights=False)[1]
        weights.retain_grad()
        values = F.linear(v, *(part.chunk(3)[2] for part in (block.attn.in_proj_weight, block.attn.in_proj_bias)))
        heads = weights @ values.unflatten(-1, (3, 8)).transpose(1, 2)
        x = x + block.attn.out_proj(heads.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.ln_2(x))
        layers.append(weights)
    outputs = model.ln_post(x)[:, 0] @ model.proj
    assert_close(outputs, model(pixels))
    backward(outputs, TARGETS)
    expected = [by_hand(layers, [layer.grad for layer in layers], picture) for picture in range(2)]
    assert_close(found, torch.stack(expected))
    assert_close(select_pooled_row(model, found), found[:, 0])


def clip(pool: Callable[[], nn.Module], causal: bool) -> CLIP:
    text = TextTower(Encoder(16, 3, 4, causal=causal), 50, 9, 5, pool=pool)
    return CLIP(vit(Mean), text, bias=-3.0)


@pytest.mark.parametrize("start", [-1, 0])
@pytest.mark.parametrize("pool, causal", [(partial(EndOfText, end=49), True), (Last, False)])
def test_relevance_of_a_pair_is_the_reference_in_both_towers(
    randomise: Randomise, pool: Callable[[], nn.Module], causal: bool, start: int
) -> None:
    model, pixels, ids = randomise(clip(pool, causal)), images(), torch.randint(0, 49, (2, 9))
    ids[0, 4] = ids[1, 7] = 49
    found = text_relevance(model, pixels, ids, start=start)
    cores = replace_cores(model)
    both = model(pixels, ids)
    (both.scale * (both.image * both.text).sum()).backward()
    ends = [4, 7] if causal else [8, 8]
    for picture, end in enumerate(ends):
        sides = []
        for side in ("image.", "text."):
            some = [core.weights for name, core in cores.items() if name.startswith(side)][start:]
            whole = by_hand(some, [one.grad for one in some], picture)
            sides.append(whole - torch.eye(len(whole)))  # what the layers add
        assert_close(found.image[picture], sides[0][2:].mean(0), rtol=1e-7, atol=1e-12)
        assert_close(found.text[picture], sides[1][end], rtol=1e-7, atol=1e-12)
        assert not found.text[picture, end + 1 :].any()
    assert found.start == start


@pytest.mark.parametrize("given", [False, True])
def test_cross_relevance_is_the_reference(randomise: Randomise, given: bool) -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder(16, 2, 4, memory_dim=12, causal=True)
            self.head = nn.Linear(16, 5)

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            return self.head(self.encoder(x, torch.arange(4)[None, :, None], memory=memory)[:, -1])

    model, x, memory = randomise(Decoder()), torch.randn(2, 4, 16).double(), torch.randn(2, 7, 12).double()
    own = torch.rand(2, 7, 7).double() + torch.eye(7) if given else None
    found = cross_relevance(model, lambda: model(x, memory), TARGETS, list(find_attention_layers(model)), memory=own)
    cores = replace_cores(model)
    backward(model(x, memory), TARGETS)
    for picture in range(2):
        tt, tm = torch.eye(4).double(), torch.zeros(4, 7).double()
        mm = torch.eye(7).double()
        if own is not None:
            mm = own[picture] - torch.eye(7)
            mm = torch.stack([row / row.sum() for row in mm]) + torch.eye(7)
        for layer in range(2):
            own_core, cross = (cores[f"encoder.blocks.{layer}.{kind}.f"] for kind in ("attn", "cross"))
            mean = (own_core.weights[picture] * own_core.weights.grad[picture]).clamp(min=0).mean(0)
            tt, tm = tt + mean @ tt, tm + mean @ tm
            mean = (cross.weights[picture] * cross.weights.grad[picture]).clamp(min=0).mean(0)
            added = torch.stack([row / row.sum() if row.sum() > 0 else row for row in tt - torch.eye(4)])
            tm = tm + (added + torch.eye(4)).T @ mean @ mm
        assert_close(found.tokens[picture], tt.detach())
        assert_close(found.memory[picture], tm.detach())
        assert found.memory[picture].abs().max() > 1e-3


def test_gradient_attention_is_signed(randomise: Randomise) -> None:
    """To first order, products of a layer add up to what scaling its weights changes."""
    model, pixels = randomise(vit()), images()
    name = "encoder.blocks.2.attn.f"
    found = compute_gradient_attention(model, lambda: model(pixels), TARGETS, [name])[name]
    core = replace_cores(model)[name]
    gather = core.forward
    step = 1e-6

    def output(scale: float) -> Tensor:
        core.forward = lambda *arguments: gather(*arguments) * scale  # the gathered are linear in the weights
        return model(pixels).gather(1, TARGETS[:, None])[:, 0]

    slope = (output(1 + step) - output(1 - step)) / (2 * step)
    assert_close(found.sum((1, 2, 3)), slope, rtol=1e-5, atol=1e-7)
    assert (found < 0).any() and (found > 0).any()


def test_input_relevance_of_a_linear_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(24 * 32, 5)).double()
    pixels = images(1)
    found = input_relevance(model, pixels, TARGETS, (8, 16))
    for picture, target in enumerate(TARGETS.tolist()):
        weights = model[1].weight[target].view(24, 32).detach() * pixels[picture, 0]
        expected = [[weights[y : y + 8, x : x + 16].sum() for x in (0, 16)] for y in (0, 8, 16)]
        assert_close(found[picture], torch.tensor(expected, dtype=torch.float64))


def test_model_is_unchanged_and_may_be_frozen(randomise: Randomise) -> None:
    model, pixels = randomise(vit()), images()
    names = list(find_attention_layers(model))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    free = relevance(model, model, pixels, TARGETS, names)
    with torch.no_grad():
        assert torch.equal(relevance(model, model, pixels, TARGETS, names), free)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert_close(relevance(model.requires_grad_(False), model, pixels, TARGETS, names), free)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not free.requires_grad and not pixels.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_relevance_is_independent_of_the_batch(randomise: Randomise) -> None:
    model, pixels = randomise(vit()), images()
    names = list(find_attention_layers(model))
    both = relevance(model, model, pixels, TARGETS, names)
    assert_close(relevance(model, model, pixels[1:], TARGETS[1:], names), both[1:])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda model: model.train(), "model must be in evaluation mode"),
        (lambda model: model, "targets must be 2 numbers from 0 to 4, got [1, 5]"),
    ],
)
def test_invalid_arguments_are_refused(
    randomise: Randomise, change: Callable[[nn.Module], nn.Module], message: str
) -> None:
    model = change(randomise(vit()))
    with pytest.raises(ValueError, match=re.escape(message)):
        relevance(model, model, images(), torch.tensor([1, 5]), list(find_attention_layers(model)))


def test_layers_without_an_effect_are_named(randomise: Randomise) -> None:
    model = randomise(vit())
    names = list(find_attention_layers(model))

    def cut(pixels: Tensor) -> Tensor:
        return model(pixels).detach()

    with pytest.raises(
        ValueError, match=r"layers must lead to the outputs, got encoder.blocks.0.attn.f, .*use this model"
    ):
        relevance(model, cut, images(), TARGETS, names)
    with pytest.raises(ValueError, match="layers must hold a cross-attention of vitkit's, got encoder.blocks.0.attn.f"):
        cross_relevance(model, lambda: model(images()), TARGETS, names[:1])


def test_windows_are_refused() -> None:
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1), embed_dim=24, img_size=56, num_classes=5
    )
    with pytest.raises(ValueError, match="layers must attend over whole images, got windows in layers.0"):
        relevance(swin.eval(), swin, torch.randn(2, 3, 56, 56), TARGETS, ["layers.0.*.attn"])


def test_pairs_must_be_pairs(randomise: Randomise) -> None:
    model = randomise(clip(Last, False))
    with pytest.raises(ValueError, match="images and texts must be pairs, got 2 images and 3 texts"):
        text_relevance.__wrapped__(model, images(), torch.zeros(3, 9, dtype=torch.int64))
