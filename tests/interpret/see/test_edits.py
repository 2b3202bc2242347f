from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.interpret.see.calls import Call
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.edits import FixedOutput, Head, attend_uniformly, edit, knockout, permute, zero
from vitkit.interpret.see.hooks import watch_layers
from vitkit.interpret.see.layers import CaptureError, find_attention_layers
from vitkit.models import ViT
from vitkit.nn import Attention, Encoder, masks

Randomise = Callable[[nn.Module], nn.Module]
B, T, D, H, DH = 3, 7, 24, 3, 8
LAYER = "blocks.1.attn.f"


@pytest.fixture
def encoder(randomise: Randomise) -> nn.Module:
    return randomise(Encoder(D, 2, H))


@pytest.fixture
def tokens() -> tuple[Tensor, Tensor]:
    return torch.randn(B, T, D, dtype=torch.float64), torch.zeros(1, T, 1, dtype=torch.float64)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(B, 3, 16, 24, dtype=torch.float64)


def tiny(**more: object) -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224",
        embed_dim=D,
        depth=2,
        num_heads=H,
        img_size=(16, 24),
        patch_size=8,
        num_classes=5,
        **more,
    )


def zero_columns(linear: nn.Linear, head: int) -> None:
    with torch.no_grad():
        linear.weight[:, head * DH : (head + 1) * DH] = 0


def compute_head_outputs(model: nn.Module, layer: str, run: Callable[[], object]) -> Tensor:
    result: list[Tensor] = []
    with watch_layers({layer: model.get_submodule(layer)}, lambda _, call: result.append(call.compute_output())):
        run()
    return result[0]


@pytest.mark.parametrize("head", range(H))
def test_edit_equals_zeroed_columns(head: int, encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    before = encoder(*tokens)
    with edit(encoder, Head(LAYER, head)):
        result = encoder(*tokens)
    assert torch.equal(encoder(*tokens), before)  # nothing of the model is changed
    zero_columns(encoder.get_submodule(LAYER).out, head)
    assert_close(result, encoder(*tokens), rtol=0, atol=1e-12)
    assert (result - before).abs().max() > 0.01


@pytest.mark.parametrize("fused", [True, False])
def test_edit_of_timm_equals_zeroed_columns(fused: bool, randomise: Randomise, images: Tensor) -> None:
    model = randomise(tiny())
    for block in model.blocks:
        block.attn.fused_attn = fused  # without, only the softmax is seen
    with edit(model, Head("blocks.0.attn", 2)):
        result = model(images)
    zero_columns(model.blocks[0].attn.proj, 2)
    assert_close(result, model(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_edit_of_multihead_attention_equals_zeroed_columns(
    batch_first: bool, need_weights: bool, randomise: Randomise
) -> None:
    layer = randomise(nn.MultiheadAttention(D, H, batch_first=batch_first))
    model, x = nn.ModuleDict({"attn": layer}), torch.randn(B, T, D, dtype=torch.float64)
    with edit(model, Head("attn", 1)):
        result = layer(x, x, x, need_weights=need_weights)[0]
    zero_columns(layer.out_proj, 1)
    assert_close(result, layer(x, x, x, need_weights=need_weights)[0], rtol=0, atol=1e-12)


def test_without_any_head_a_layer_adds_its_bias_alone(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    before: list[Tensor] = []
    block = encoder.blocks[1].attn
    block.register_forward_hook(lambda _, arguments, output: before.append(output - arguments[0]))
    with edit(encoder, *(Head(LAYER, head) for head in range(H))):
        encoder(*tokens)
    assert_close(before[0], block.f.out.bias.expand(B, T, D))


def test_a_head_of_grouped_keys_is_found(randomise: Randomise) -> None:
    model = randomise(Encoder(32, 1, 4, attention=partial(Attention, kv_heads=2)))
    x, positions = torch.randn(2, 5, 32, dtype=torch.float64), torch.zeros(1, 5, 1, dtype=torch.float64)
    layer, calls = model.blocks[0].attn, list[Call]()
    with watch_layers({"layer": layer.f}, lambda _, call: calls.append(call)):
        model(x, positions)
    v = layer.f.qkv(layer.norm(x)).unflatten(-1, (8, 8)).transpose(1, 2)[:, 6:]
    for head in range(4):
        expected = v[:, head // 2].mean(1, keepdim=True).expand(2, 5, 8)
        assert_close(attend_uniformly(calls[0], Head("layer", head)), expected)


def test_uniform_weights_stay_within_the_mask(randomise: Randomise, tokens: tuple[Tensor, Tensor]) -> None:
    model = randomise(Encoder(D, 2, H, causal=True))
    calls: list[Call] = []
    with watch_layers({LAYER: model.get_submodule(LAYER)}, lambda _, call: calls.append(call)):
        model(*tokens)
    v = calls[0].v[:, 1]
    assert_close(attend_uniformly(calls[0], Head(LAYER, 1)), v.cumsum(1) / torch.arange(1, T + 1)[:, None])


@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min])
def test_uniform_treats_a_forbidding_bias_as_a_mask(low: float) -> None:
    q, k, v = torch.randn(3, B, H, T, DH)
    bias = torch.randn(1, 1, T, T)
    bias[..., T // 2 :] = low
    result = attend_uniformly(Call(q, k, v, None, bias, None, None), Head("", 2))
    assert_close(result, v[:, 2, : T // 2].mean(1, keepdim=True).expand(B, T, DH))


def test_uniform_is_equal_for_softmax_and_kernel(randomise: Randomise, images: Tensor) -> None:
    model, result = randomise(tiny()), []
    for fused in (True, False):
        for block in model.blocks:
            block.attn.fused_attn = fused
        with edit(model, Head("blocks.0.attn", 1, attend_uniformly)):
            result.append(model(images))
    assert_close(*result)
    assert (result[0] - model(images)).abs().max() > 1e-3


def test_permuting_equal_pictures_changes_nothing(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    x = tokens[0][:1].expand(B, T, D).contiguous()
    with edit(encoder, Head(LAYER, 0, permute)):
        result = encoder(x, tokens[1])
    assert_close(result, encoder(x, tokens[1]))


@pytest.mark.parametrize("each", [True, False])
def test_permute_takes_the_output_of_another_image(
    each: bool, encoder: nn.Module, tokens: tuple[Tensor, Tensor]
) -> None:
    outputs = compute_head_outputs(encoder, LAYER, lambda: encoder(*tokens))
    with edit(encoder, Head(LAYER, 0, permute)):
        result = encoder(*tokens)
    for picture in range(B) if each else [0]:
        with edit(encoder, Head(LAYER, 0, FixedOutput(outputs[picture - 1, 0]))):
            assert_close(encoder(*tokens)[picture], result[picture])


def test_a_head_is_fixed_to_its_mean(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    before = encoder(*tokens)
    outputs = compute_head_outputs(encoder, LAYER, lambda: encoder(*tokens))
    with edit(encoder, Head(LAYER, 2, FixedOutput(outputs[0, 2]))):
        result = encoder(*tokens)
    assert_close(result[0], before[0])
    assert (result[1] - before[1]).abs().max() > 1e-3
    with edit(encoder, Head(LAYER, 2, FixedOutput(mean := outputs[:, 2].mean((0, 1))))):
        result = encoder(*tokens)
    layer = encoder.get_submodule(LAYER)
    with torch.no_grad():  # what is always added is a bias
        layer.out.bias += layer.out.weight[:, 2 * DH :] @ mean
    zero_columns(layer.out, 2)
    assert_close(result, encoder(*tokens))


def test_knockout_equals_a_mask(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    keys = torch.rand(B, T) < 0.4
    keys[:, 0] = False
    with knockout(encoder, keys=keys):
        result = encoder(*tokens)
    assert_close(result, encoder(*tokens, mask=masks.padding(~keys)))
    assert (result - encoder(*tokens)).abs().max() > 0.01
    with knockout(encoder, keys=keys[1]):
        assert_close(encoder(*tokens), encoder(*tokens, mask=masks.padding(~keys[1:2])))


@pytest.mark.parametrize("fused", [True, False])
def test_knockout_of_timm_renormalises(fused: bool, randomise: Randomise, images: Tensor) -> None:
    model, keys = randomise(tiny()), torch.tensor([False, True, False, False, True, False, False])
    layers = find_attention_layers(model)
    for layer in layers.values():
        layer.fused_attn = fused
    calls: list[Tensor] = []
    with watch_layers({"blocks.0.attn": layers["blocks.0.attn"]}, lambda _, call: calls.append(call.compute_weights())):
        model(images)
    kept = calls[0] * ~keys
    expected = kept / kept.sum(-1, keepdim=True)
    with knockout(model, "blocks.0.attn", keys=keys):
        result = model(images)
    for layer in layers.values():
        layer.fused_attn = True

    def by_hand(name: str, call: Call) -> Tensor:
        return call.compute_output(expected)

    with watch_layers({"blocks.0.attn": layers["blocks.0.attn"]}, by_hand):
        assert_close(result, model(images))


def test_edits_inside_edits_add_up(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    with edit(encoder, Head(LAYER, 0), Head(LAYER, 2), Head("blocks.0.attn.f", 1)):
        together = encoder(*tokens)
    with edit(encoder, Head(LAYER, 0)), edit(encoder, Head(LAYER, 2)), edit(encoder, Head("blocks.0.attn.f", 1)):
        assert_close(encoder(*tokens), together)


def test_capture_inside_an_edit_sees_the_weights_of_later_layers_change(randomise: Randomise, images: Tensor) -> None:
    model = randomise(ViT(Encoder(D, 2, H), (16, 24), (8, 8), 5))
    with capture(model) as before:
        model(images)
    with edit(model, Head("encoder.blocks.0.attn.f", 1)), capture(model) as after:
        model(images)
    assert_close(after.get_layer(0).weights, before.get_layer(0).weights)
    assert (after.get_layer(1).weights - before.get_layer(1).weights).abs().max() > 1e-4


def test_an_edit_that_does_nothing_is_bit_identical(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    with edit(encoder, Head(LAYER, 0, lambda call, head: call.compute_output()[:, head.head])):
        result = encoder(*tokens)
    assert torch.equal(result, encoder(*tokens))


def test_gradients_flow_through_an_edit(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    with edit(encoder, Head(LAYER, 1)):
        encoder(*tokens).square().sum().backward()
    columns = encoder.get_submodule(LAYER).out.weight.grad.unflatten(1, (H, DH)).abs().sum((0, 2))
    assert columns[1] == 0
    assert columns[0] > 0


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([Head(LAYER, 3)], "head must be from 0 to 2"),
        ([Head(LAYER, -1)], "head must be from 0 to 2"),
        ([Head("blocks.7.attn.f", 0)], "patterns must name layers"),
        ([Head("blocks.*", 0)], "layer must name one layer"),
        ([Head(LAYER, 1), Head(LAYER, 1, attend_uniformly)], "heads must be named once"),
        ([Head(LAYER, 1, FixedOutput(torch.zeros(5)))], "mean must be of shape"),
    ],
)
def test_invalid_heads_are_refused(heads: list[Head], message: str, encoder: nn.Module, tokens: tuple) -> None:
    with pytest.raises(ValueError, match=message), edit(encoder, *heads):
        encoder(*tokens)
    assert not encoder.get_submodule(LAYER).core._forward_hooks


def test_permute_needs_two_images(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="at least 2 images"), edit(encoder, Head(LAYER, 0, permute)):
        encoder(tokens[0][:1], tokens[1])


def test_softmax_layers_refuse_edits_of_outputs(randomise: Randomise, images: Tensor) -> None:
    model = randomise(tiny())
    model.blocks[0].attn.fused_attn = False
    for how in (permute, FixedOutput(torch.zeros(DH))):
        with pytest.raises(CaptureError, match="its own softmax"), edit(model, Head("blocks.0.attn", 0, how)):
            model(images)


def test_edit_of_an_idle_layer_is_refused(encoder: nn.Module) -> None:
    with pytest.raises(CaptureError, match="must run"), edit(encoder, Head(LAYER, 0, zero)):
        pass


def test_knockout_refuses_other_numbers_of_keys(encoder: nn.Module, tokens: tuple[Tensor, Tensor]) -> None:
    with (
        pytest.raises(ValueError, match=r"keys must be of shape \(7,\) or \(3, 7\), got \(6,\)"),
        knockout(encoder, keys=torch.zeros(6, dtype=torch.bool)),
    ):
        encoder(*tokens)
