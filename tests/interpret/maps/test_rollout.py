"""Rollout against its closed form and a loop written by hand; which row of a map is read."""

import re
from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit import CLIP, MAE, Attend, Encoder, First, Mean, TextTower, ViT
from vitkit.interpret.maps.rollout import rollout, select_pooled_row
from vitkit.interpret.see.capture import capture
from vitkit.nn import EndOfText

B, H, T, L = 2, 3, 13, 4


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).softmax(-1)


@pytest.fixture
def layers() -> list[Tensor]:
    return [drawn(B, H, T, T) for _ in range(L)]


@pytest.mark.parametrize("depth", [1, 4, 12])
@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5, 1.0])
def test_uniform_attention_rolls_out_in_closed_form(depth: int, residual: float) -> None:
    uniform = torch.full((B, H, T, T), 1 / T, dtype=torch.float64)
    left = residual**depth  # 2^-L at a half
    expected = left * torch.eye(T, dtype=torch.float64) + (1 - left) / T
    assert_close(rollout([uniform] * depth, residual=residual), expected.expand(B, T, T), rtol=0, atol=1e-15)


@pytest.mark.parametrize("start", [0, 2, -1])
def test_rollout_is_the_product_written_by_hand(layers: list[Tensor], start: int) -> None:
    expected = []
    for picture in range(B):
        result = torch.eye(T, dtype=torch.float64)
        for layer in layers[start:]:
            mixed = sum(layer[picture, head] for head in range(H)) / H + torch.eye(T)  # 0.5 A + 0.5 I, by its row sums
            result = (mixed / mixed.sum(-1, keepdim=True)) @ result
        expected.append(result)
    found = rollout(layers, start=start)
    assert_close(found, torch.stack(expected))
    assert_close(found.sum(-1), torch.ones(B, T, dtype=torch.float64))


def test_attention_pool_has_no_residual(layers: list[Tensor]) -> None:
    pool = drawn(B, 5, 1, T)
    found = rollout([*layers, pool])
    assert_close(found, pool.mean(1) @ rollout(layers))
    assert found.shape == (B, 1, T)


@pytest.mark.parametrize(
    "shapes, wrong",
    [
        ([(B, H, T, T), (B, H, 4, 4)], "layer 1"),  # a stage that merged tokens
        ([(B, H, T, T), (4 * B, H, T, T)], "layer 1"),  # windows
        ([(B, H, 4, T), (B, H, 4, T)], "layer 0"),
        ([(B, H, 1, T), (B, H, T, T)], "layer 0"),  # single queries before the end
    ],
)
def test_layers_of_different_tokens_are_refused(shapes: list[tuple[int, ...]], wrong: str) -> None:
    with pytest.raises(ValueError, match=f"weights must map 13 tokens to the same tokens .* {wrong}: windows"):
        rollout([drawn(*shape) for shape in shapes])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"residual": 1.5}, "residual must be from 0 to 1, got residual=1.5"),
        ({"start": L}, f"start must be one of {L} layers, from either end, got start={L}"),
        ({"start": -L - 1}, f"start must be one of {L} layers"),
    ],
)
def test_wrong_numbers_are_refused(layers: list[Tensor], options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rollout(layers, **options)


def vit(pool: Callable[[int, int], nn.Module], prefix: int = 2) -> ViT:
    return ViT(Encoder(16, 1, 2), (24, 32), (8, 8), 4, prefix=prefix, pool=pool)


def test_selected_row_is_that_of_the_pooled_token() -> None:
    maps = drawn(B, H, 14, 14)
    assert torch.equal(select_pooled_row(vit(First), maps), maps[:, :, 0])
    assert_close(select_pooled_row(vit(Mean), maps), maps[:, :, 2:].mean(2))
    pool = drawn(B, 1, 14)
    assert torch.equal(select_pooled_row(vit(partial(Attend, heads=2)), pool), pool[:, 0])
    mae = MAE(Encoder(16, 1, 2), Encoder(16, 1, 2), (24, 32), (8, 8), prefix=2)
    assert_close(select_pooled_row(mae, maps), maps[:, :, 2:].mean(2))
    text = TextTower(Encoder(16, 1, 2, causal=True), 50, 9, 4, pool=partial(EndOfText, end=49))
    assert torch.equal(select_pooled_row(CLIP(vit(First), text), maps), maps[:, :, 0])


@pytest.mark.parametrize(
    "name, options",
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False}),
        ("vit_tiny_patch16_224", {"global_pool": "avg"}),
        ("vit_small_patch14_reg4_dinov2", {"global_pool": "avg"}),
        ("eva02_tiny_patch14_224", {}),
    ],
)
def test_selected_row_of_timm_has_the_gradient(name: str, options: dict[str, object]) -> None:
    """Through a pool that mixes no tokens, the answer's gradient is 0 at every other token."""
    model = timm.create_model(
        name, depth=1, num_classes=3, img_size=(28 * 2, 28 * 3) if "14" in name else (32, 48), **options
    )
    tokens = torch.randn(
        1, model.patch_embed.num_patches + model.num_prefix_tokens, model.embed_dim, requires_grad=True
    )
    model.eval().forward_head(tokens).sum().backward()
    used = tokens.grad[0].abs().sum(-1) > 0
    read = select_pooled_row(model, torch.eye(len(used))[None])[0]
    assert torch.equal(read > 0, used)
    assert_close(read.sum().item(), 1.0)


def test_unknown_pooling_is_refused() -> None:
    maps = drawn(1, 14, 14)
    with pytest.raises(ValueError, match="model must pool by CLS, .* got torch.nn.modules.linear.Identity"):
        select_pooled_row(nn.Identity(), maps)
    swin = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1))
    with pytest.raises(ValueError, match="model must pool by CLS, .* got timm.models.swin_transformer.SwinTransformer"):
        select_pooled_row(swin, maps)
    with pytest.raises(ValueError, match="maps must have the one row of the attention pool, got 14 rows"):
        select_pooled_row(vit(partial(Attend, heads=2)), maps)
    with pytest.raises(ValueError, match="maps must have a row for each token, got 1 rows"):
        select_pooled_row(vit(First), maps[:, :1])


def test_captured_weights_roll_out(randomise: Callable[[nn.Module], nn.Module]) -> None:
    model = randomise(vit(partial(Attend, heads=2)))
    with capture(model) as attention:
        model(torch.randn(3, 3, 24, 32, dtype=torch.float64))
    row = select_pooled_row(model, rollout([layer.weights for layer in attention.values()]))
    assert_close(row.sum(-1), torch.ones(3, dtype=torch.float64))
