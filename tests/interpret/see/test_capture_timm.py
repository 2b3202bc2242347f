"""Capture of timm's models, kernels left on, against the softmaxes of the same models without fused attention."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.layers.config import set_fused_attn, use_fused_attn
from timm.models.nest import Nest
from torch import Tensor, nn

from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.coverage import coverage
from vitkit.interpret.see.layers import CaptureError, find_attention_layers

Size = tuple[int, int]
WIDE, SQUARE = (64, 96), (64, 64)
NARROW = {"embed_dim": 48, "num_heads": 3}
# What makes an architecture small, and the size of its image, oblong where it takes one. Every kind of attention of
# timm that can be captured is here.
MODELS: dict[str, tuple[dict[str, Any], Size]] = {
    "vit_tiny_patch16_224": ({"depth": 2, "img_size": WIDE}, WIDE),
    "deit_tiny_distilled_patch16_224": ({"depth": 2, "img_size": WIDE}, WIDE),
    "deit3_small_patch16_224": ({"depth": 2, "img_size": WIDE, **NARROW}, WIDE),
    "vit_small_patch14_reg4_dinov2": ({"depth": 2, "img_size": (56, 84), **NARROW}, (56, 84)),
    "vit_small_patch16_dinov3": ({"depth": 2, "img_size": WIDE, **NARROW}, WIDE),
    "vit_small_patch16_rope_mixed_224": ({"depth": 2, "img_size": WIDE, **NARROW}, WIDE),
    "eva02_tiny_patch14_224": ({"depth": 2, "img_size": (56, 84)}, (56, 84)),
    "beit_base_patch16_224": ({"depth": 2, "img_size": WIDE, **NARROW}, WIDE),
    "vit_base_patch16_siglip_224": ({"depth": 2, "img_size": WIDE, **NARROW}, WIDE),
    "flexivit_small": ({"depth": 2, "img_size": WIDE, **NARROW}, WIDE),
    "naflexvit_base_patch16_gap": ({"depth": 2, **NARROW}, WIDE),
    "vit_relpos_small_patch16_224": ({"depth": 2, "img_size": WIDE, **NARROW}, WIDE),
    "vit_pwee_patch16_reg1_gap_256": ({"depth": 2, "img_size": WIDE, **NARROW}, WIDE),
    "vit_tiny_r_s16_p8_224": ({"depth": 2, "img_size": WIDE}, WIDE),
    "pit_ti_distilled_224": ({"depth": (1, 1, 1)}, (224, 224)),
    "pvt_v2_b0": ({"depths": (1, 1, 1, 1)}, WIDE),
    "twins_pcpvt_small": ({"depths": (1, 1, 1, 1), "img_size": WIDE}, WIDE),
    "twins_svt_small": ({"depths": (2, 2, 1, 1), "img_size": WIDE}, WIDE),
    "nest": (
        {"num_levels": 2, "img_size": 32, "embed_dims": (24, 48), "num_heads": (3, 6), "depths": (1, 1)},
        (32, 32),
    ),
    "samvit_base_patch16_224": ({"depth": 2, "img_size": 64, **NARROW}, SQUARE),
    "crossvit_tiny_240": ({"depth": ((1, 2, 0), (1, 1, 0), (1, 1, 0))}, (240, 240)),
    "swin_tiny_patch4_window7_224": ({"depths": (2, 1), "num_heads": (3, 6), "img_size": WIDE, "embed_dim": 24}, WIDE),
    "swinv2_tiny_window8_256": ({"depths": (2, 1), "num_heads": (3, 6), "img_size": WIDE, "embed_dim": 24}, WIDE),
    "swinv2_cr_tiny_224": ({"depths": (2, 1), "num_heads": (3, 6), "img_size": WIDE, "embed_dim": 24}, WIDE),
    "mvitv2_tiny": ({"img_size": 64}, SQUARE),
    "levit_128s": ({}, (224, 224)),
    "tnt_s_legacy_patch16_224": ({"depth": 2, "img_size": 64}, SQUARE),
    "visformer_tiny": ({"img_size": 64}, SQUARE),
    "gcvit_xxtiny": ({}, (224, 224)),
    "efficientformerv2_s0": ({}, (224, 224)),
    "maxvit_rmlp_pico_rw_256": ({"img_size": 64}, SQUARE),
    "coatnet_nano_rw_224": ({"img_size": 64}, SQUARE),
    "mobilevit_xxs": ({}, WIDE),
    "tiny_vit_5m_224": ({"depths": (1, 1, 1, 1)}, (224, 224)),
    "hiera_tiny_224": ({"stages": (1, 1, 1, 1)}, (224, 224)),
    "mobilenetv4_hybrid_medium": ({}, SQUARE),
    "vitamin_small_224": ({"img_size": 64}, SQUARE),
}
SLOW = {"levit_128s", "gcvit_xxtiny", "efficientformerv2_s0", "mobilenetv4_hybrid_medium", "vitamin_small_224"}
SLOW |= {"coatnet_nano_rw_224", "maxvit_rmlp_pico_rw_256", "visformer_tiny", "tiny_vit_5m_224", "hiera_tiny_224"}
SLOW |= {"crossvit_tiny_240", "mvitv2_tiny", "volo_d1_224"}


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    before = use_fused_attn()
    yield
    set_fused_attn(bool(before))


def made(name: str, fused: bool, **options: Any) -> nn.Module:
    set_fused_attn(fused)
    torch.manual_seed(0)
    build = Nest if name == "nest" else partial(timm.create_model, name)  # the names of timm fix its depths
    model = build(num_classes=7, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)  # tables of places begin at zero
    return model


def softmaxes(model: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """All that a pass takes, in order."""
    result: list[Tensor] = []
    softmax = Tensor.softmax

    def recorded(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        result.append(softmax(x, *arguments, **options))
        return result[-1]

    monkeypatch.setattr(Tensor, "softmax", recorded)
    model(images)
    monkeypatch.undo()
    return result


def by_head(name: str, weights: Tensor, like: Tensor) -> Tensor:
    """With the windows beside the batch, written once more for each."""
    if name == "twins_svt_small" and weights.ndim == 5:  # (B, W, H, T, S)
        return torch.cat([weights[image] for image in range(len(weights))])
    if weights.ndim == 5:  # (B, H, W, T, S) of nest and hiera
        return torch.cat([weights[image].movedim(1, 0) for image in range(len(weights))])
    if name.startswith("samvit"):  # (B H, T, S)
        return torch.stack(weights.split(like.shape[1]))
    return weights


@torch.no_grad()
@pytest.mark.parametrize("name", marked(MODELS))
def test_weights_are_the_softmaxes_of_the_unfused_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, size = MODELS[name]
    model, images = made(name, fused=True, **options), torch.randn(2, 3, *size)
    plain = model(images)
    with capture(model) as attention:
        watched = model(images)
    assert torch.equal(plain, watched)
    assert len(attention) >= len(find_attention_layers(model)) > 0
    expected = softmaxes(made(name, fused=False, **options), images, monkeypatch)
    for own, weights in zip(attention.values(), expected, strict=True):
        torch.testing.assert_close(own.weights, by_head(name, weights, own.weights), rtol=0, atol=1e-6)
        torch.testing.assert_close(own.weights.sum(-1), torch.ones(own.weights.shape[:-1]), rtol=0, atol=2e-6)


REFUSED = {
    "xcit_tiny_12_p16_224": ("XCA", {"depth": 1, "img_size": 32}, (32, 32)),
    "davit_tiny": ("ChannelAttention", {"depths": (1, 1), "embed_dims": (24, 48), "num_heads": (3, 6)}, WIDE),
    "volo_d1_224": ("OutlookAttention", {}, (224, 224)),
    "convit_tiny": ("GPSA", {"img_size": 64}, SQUARE),
    "cait_xxs24_224": ("TalkingHeadAttn", {"depth": 1, "img_size": 64}, SQUARE),
    "efficientvit_b0": ("LiteMLA", {}, WIDE),
    "efficientvit_m0": ("CascadedGroupAttention", {}, (224, 224)),
    "mobilevitv2_050": ("LinearSelfAttention", {}, WIDE),
    "vit_base_patch16_224": ("DiffAttention", {"depth": 1, "img_size": 32, "attn_layer": "diff", **NARROW}, (32, 32)),
}


@pytest.mark.parametrize("name", marked(REFUSED))
def test_unsupported_attention_is_refused_with_its_reason(name: str) -> None:
    kind, options, size = REFUSED[name]
    model = made(name, fused=True, **options)
    with pytest.raises(CaptureError, match=rf"layers cannot be captured: .*: {kind} \w+"), capture(model):
        pass
    table = coverage(model, torch.randn(1, 3, *size))
    refused = [row for row in table if row.module == kind]
    assert refused
    assert all(row.reason and kind in row.reason and not row.calls for row in refused)
    others = [row.layer for row in table if row.module != kind]
    assert all(row.reason is None for row in table if row.module != kind)
    if others:
        with torch.no_grad(), capture(model, *others) as attention:
            model(torch.randn(1, 3, *size))
        assert set(attention) >= set(others)


@torch.no_grad()
@pytest.mark.parametrize("name", ["samvit_base_patch16_224", "twins_svt_small", "nest", "pvt_v2_b0"])
def test_replaced_weights_reach_the_output(name: str) -> None:
    """Through `gradient` the weights that are computed take the place of the kernel."""
    options, size = MODELS[name]
    model, images = made(name, fused=True, **options), torch.randn(2, 3, *size)
    with torch.enable_grad(), capture(model, gradient=True) as attention:
        watched = model(images)
        gradients = torch.autograd.grad(watched[:, 0].sum(), [own.weights for own in attention.values()])
    torch.testing.assert_close(watched, model(images), rtol=1e-4, atol=1e-5)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_model_without_attention_is_refused() -> None:
    with pytest.raises(CaptureError, match="has no module that is called attention"), capture(nn.Linear(1, 1)):
        pass
    for asked in (-1, "blocks.0.attn"):
        with (
            pytest.raises(CaptureError, match=f"called attention; name one, got {asked}"),
            capture(nn.Linear(1, 1), asked),
        ):
            pass


def test_a_softmax_of_unknown_axes_is_refused_as_it_runs() -> None:
    class OddAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    model = nn.Sequential(OddAttention())
    with pytest.raises(CaptureError, match=r"^0 cannot be captured: OddAttention attends on 3 axes"), capture(model):
        model(torch.ones(1, 2, 2))
    [row] = coverage(model, torch.ones(1, 2, 2))
    assert (
        str(row)
        == "0 (OddAttention): not captured: OddAttention attends on 3 axes: which of them is the heads is unknown"
    )
    model(torch.ones(1, 2, 2))


def test_rows_that_do_not_sum_to_1_are_refused() -> None:
    class ColumnAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-2)

    model, x = nn.Sequential(ColumnAttention()), torch.randn(1, 2, 3, 3)
    with pytest.raises(CaptureError, match=r"^0 cannot be captured: attention rows must sum"), capture(model):
        model(x)
    [row] = coverage(model, x)
    assert "must sum to 1" in str(row.reason)


def test_16_bit_rows_may_be_off_by_rounding() -> None:
    class EagerAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    model, x = nn.Sequential(EagerAttention()), torch.randn(8, 4, 64, 64).bfloat16() * 4
    with capture(model) as attention:
        own = model(x)
    assert (own.sum(-1, dtype=torch.float32) - 1).abs().max() > 1e-3
    torch.testing.assert_close(attention["0"].weights, own.float())


def test_a_layer_that_changes_its_weights_in_place_does_not_change_what_was_captured() -> None:
    class WastefulAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1).zero_()

    model, x = nn.Sequential(WastefulAttention()), torch.randn(1, 2, 3, 3)
    with capture(model) as attention:
        model(x)
    torch.testing.assert_close(attention["0"].weights, x.softmax(-1))
