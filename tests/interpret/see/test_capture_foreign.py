"""Capture of open_clip's, torchvision's, transformers' and PyTorch's own layers, against the weights they return."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.coverage import coverage
from vitkit.interpret.see.layers import CaptureError

Draw = Callable[[nn.Module], nn.Module]
B, T, S = 2, 3, 5


def multihead_attention(draw: Draw, **options: Any) -> nn.MultiheadAttention:
    return draw(nn.MultiheadAttention(**{"embed_dim": 8, "num_heads": 2, "batch_first": True, **options}))


def compute_reference(module: nn.MultiheadAttention, *inputs: Tensor, **options: Any) -> Tensor:
    """Return the weights that PyTorch computes; a row without visible keys is 0, there nan."""
    weights = module(*inputs, need_weights=True, average_attn_weights=False, **options)[1]
    return (weights if weights.ndim == 4 else weights[None]).nan_to_num(0)


BOOLEAN = torch.tensor([[False, False, True, True, False], [True, False, False, True, False], [False] * 5])
PADDING = torch.tensor([[False, False, False, True, True], [False] * 5])
MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "boolean": {"attn_mask": BOOLEAN},
    "boolean for each head": {"attn_mask": BOOLEAN.repeat(2 * B, 1, 1) & (torch.arange(2 * B) % 2 == 0)[:, None, None]},
    "float": {"attn_mask": torch.linspace(-2, 2, T * S).view(T, S).double()},
    "hiding float": {"attn_mask": torch.zeros(T, S).double().masked_fill(BOOLEAN, -torch.inf)},
    "both": {"attn_mask": BOOLEAN, "key_padding_mask": PADDING},
    "both, one row blind": {"attn_mask": BOOLEAN | (torch.arange(T) == 1)[:, None], "key_padding_mask": PADDING},
    "both in numbers": {
        "attn_mask": torch.linspace(-2, 2, T * S).view(T, S).double(),
        "key_padding_mask": torch.zeros(B, S).double().masked_fill(PADDING, -torch.inf),
    },
}


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_weights_equal_those_of_multihead_attention(mask: str, batch_first: bool, randomise: Draw) -> None:
    module = multihead_attention(randomise, batch_first=batch_first)
    query, memory = torch.randn(B, T, 8).double(), torch.randn(B, S, 8).double()
    if not batch_first:
        query, memory = query.transpose(0, 1), memory.transpose(0, 1)
    inputs = query, memory, memory.roll(1, -1)
    plain = module(*inputs, need_weights=False, **MASKS[mask])[0]
    with capture(module) as attention:
        watched = module(*inputs, need_weights=False, **MASKS[mask])[0]
    assert torch.equal(plain.nan_to_num(), watched.nan_to_num())
    [own] = attention.values()
    assert (own.layer, own.kind) == ("", "kernel")
    torch.testing.assert_close(own.weights, compute_reference(module, *inputs, **MASKS[mask]))


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_keys_and_values_may_have_their_own_widths_and_no_batch(bias: bool, randomise: Draw) -> None:
    module = multihead_attention(randomise, kdim=4, vdim=6, bias=bias)
    inputs = torch.randn(T, 8).double(), torch.randn(S, 4).double(), torch.randn(S, 6).double()
    with capture(module) as attention:
        module(*inputs)
    torch.testing.assert_close(attention.get_layer(0).weights, compute_reference(module, *inputs))
    assert attention.get_layer(0).weights.shape == (1, 2, T, S)


@pytest.mark.parametrize("shape", [(B, T, 8), (T, 8)])
@pytest.mark.parametrize("batch_first", [True, False])
def test_weights_of_multihead_attention_have_gradients(
    batch_first: bool, shape: tuple[int, ...], randomise: Draw
) -> None:
    module, x = multihead_attention(randomise, batch_first=batch_first), torch.randn(shape).double()
    with capture(module, gradient=True) as attention:
        watched = module(x, x, x)[0]
    torch.testing.assert_close(watched, module(x, x, x)[0])
    [gradient] = torch.autograd.grad(watched.square().sum(), [attention.get_layer(0).weights])
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_keys_that_are_no_tokens_are_refused(options: dict[str, bool]) -> None:
    module, x = nn.MultiheadAttention(8, 2, **options), torch.randn(T, B, 8)
    with pytest.raises(CaptureError, match="keys that are no tokens"), capture(module):
        module(x, x, x)
    [row] = coverage(module, x, x, x)
    assert "keys that are no tokens" in str(row)


@torch.no_grad()
def test_transformer_encoder_is_captured(randomise: Draw) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = randomise(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x = torch.randn(B, S, 8).double()
    plain = model(x, src_key_padding_mask=PADDING)
    with capture(model) as attention:
        watched = model(x, src_key_padding_mask=PADDING)
    real = ~PADDING
    torch.testing.assert_close(watched[real], plain[real])  # PyTorch has another way where hooks are
    assert list(attention) == ["layers.0.self_attn", "layers.1.self_attn"]
    normed = x
    expected = compute_reference(model.layers[0].self_attn, normed, normed, normed, key_padding_mask=PADDING)
    torch.testing.assert_close(attention.get_layer(0).weights, expected)
    assert not attention.get_layer(1).weights[0, :, :, 3:].any()


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    model, x = (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval(),
        torch.ones(B, S, 8),
    )
    with pytest.raises(CaptureError, match="got a nested tensor; set enable_nested_tensor=False"):
        watched(model, x)
    [row] = coverage(model, x, src_key_padding_mask=PADDING)
    assert "got a nested tensor" in str(row)


def watched(model: nn.Module, x: Tensor) -> None:
    with capture(model):
        model(x, src_key_padding_mask=PADDING)


@torch.no_grad()
def test_a_transformer_decoder_shows_self_and_cross_attention(randomise: Draw) -> None:
    model = randomise(nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1))
    x, memory = torch.randn(B, T, 8).double(), torch.randn(B, S, 8).double()
    causal = nn.Transformer.generate_square_subsequent_mask(T).double()
    plain = model(x, memory, tgt_mask=causal, tgt_is_causal=True)
    with capture(model) as attention:
        watched = model(x, memory, tgt_mask=causal, tgt_is_causal=True)
    assert torch.equal(plain, watched)
    own, cross = attention.values()
    assert (own.weights.shape, cross.weights.shape) == ((B, 2, T, T), (B, 2, T, S))
    assert not own.weights.triu(1).any()


class NewerAttention(nn.Module):
    """As open_clip's after 3.3: one matrix of its own, then the kernel; no layer inside that a hook could read."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * dim, dim))
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        q, k, v = F.linear(x, self.in_proj_weight).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal).transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "float"])
def test_direct_kernel_calls_are_captured(kind: str, randomise: Draw) -> None:
    module = randomise(NewerAttention(8, 2))
    x, visible = torch.randn(B, T, 8).double(), torch.tensor([[True, False, True], [True, True, False], [False] * 3])
    bias = {"none": torch.zeros(T, T), "causal": torch.full((T, T), -torch.inf).triu(1)}.get(kind)
    if bias is None:
        bias = torch.zeros(T, T).masked_fill(~visible, -torch.inf)
    mask = {"boolean": visible, "float": bias.double()}.get(kind)
    plain = module(x, mask, kind == "causal")
    with capture(module) as attention:
        watched = module(x, mask, kind == "causal")
    assert torch.equal(plain, watched)
    q, k, _ = F.linear(x, module.in_proj_weight).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    expected = (q @ k.mT / 2 + bias).softmax(-1).nan_to_num(0)
    torch.testing.assert_close(attention.get_layer(0).weights, expected)


@torch.no_grad()
def test_grouped_queries_use_the_keys_of_their_group() -> None:
    class GroupedAttention(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k, scale=0.3, enable_gqa=True)

    module, q, k = GroupedAttention(), torch.randn(B, 4, T, 8).double(), torch.randn(B, 2, S, 8).double()
    with capture(module) as whole, capture(module, heads=[2], queries=[1]) as one:
        module(q, k)
    expected = (q @ torch.stack([k[:, 0], k[:, 0], k[:, 1], k[:, 1]], 1).mT * 0.3).softmax(-1)
    torch.testing.assert_close(whole.get_layer(0).weights, expected)
    torch.testing.assert_close(one.get_layer(0).weights, expected[:, 2:3, 1:2])


@torch.no_grad()
def test_both_towers_of_open_clip_are_seen() -> None:
    open_clip = pytest.importorskip("open_clip")
    vision = {"image_size": (32, 48), "patch_size": 16, "layers": 2, "width": 32, "head_width": 8}
    text = {"context_length": 6, "vocab_size": 50, "width": 16, "heads": 2, "layers": 2}
    model = open_clip.CLIP(8, vision, text).eval()
    images, ids = torch.randn(B, 3, 32, 48), torch.randint(1, 50, (B, 6))
    expected: list[Tensor] = []

    def tell(module: nn.MultiheadAttention, inputs: Any, options: dict[str, Any]) -> None:
        expected.append(compute_reference(module, *inputs, **{k: v for k, v in options.items() if k != "need_weights"}))

    plain = model(images, ids)
    with capture(model) as attention:
        watched = model(images, ids)
    layers = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    calls = [module.register_forward_pre_hook(without_itself(tell), with_kwargs=True) for module in layers]
    model(images, ids)
    assert torch.equal(plain[0], watched[0])
    assert torch.equal(plain[1], watched[1])
    assert len(attention) == len(expected) == len(calls) == 4
    for own, weights in zip(attention.values(), expected, strict=True):
        torch.testing.assert_close(own.weights, weights, rtol=0, atol=1e-6)


def without_itself(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that calls its module is not called for that."""
    inside: list[bool] = []

    def once(*arguments: Any) -> None:
        if not inside:
            inside.append(True)
            hook(*arguments)
            inside.clear()

    return once


@torch.no_grad()
def test_torchvisions_vision_transformer_is_seen() -> None:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=3).eval()
    images, layer = torch.randn(B, 3, 32, 32), model.encoder.layers[0]
    plain = model(images)
    with capture(model) as attention:
        watched = model(images)
    assert torch.equal(plain, watched)
    assert len(attention) == 2
    x = torch.cat([model.class_token.expand(B, -1, -1), model._process_input(images)], 1)
    x = layer.ln_1(x + model.encoder.pos_embedding)
    torch.testing.assert_close(
        attention.get_layer(0).weights, compute_reference(layer.self_attention, x, x, x), rtol=0, atol=1e-6
    )


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@torch.no_grad()
@pytest.mark.parametrize("name", ["ViT", "Dinov2WithRegisters", "CLIPVision", "CLIPText"])
def test_transformers_fused_equals_eager(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    more = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 49} if name == "CLIPText" else {}
    models = []
    for kind in ("sdpa", "eager"):
        config = getattr(transformers, f"{name}Config")(**SIZES, image_size=32, patch_size=8, **more)
        config._attn_implementation = kind
        torch.manual_seed(0)
        models.append(getattr(transformers, f"{name}Model")(config).eval())
    images = torch.randint(3, 49, (B, 6)) if name == "CLIPText" else torch.randn(B, 3, 32, 32)
    plain = models[0](images).last_hidden_state
    with capture(models[0]) as attention:
        watched = models[0](images).last_hidden_state
    assert torch.equal(plain, watched)
    expected = models[1](images, output_attentions=True).attentions
    assert len(attention) == len(expected) == 2
    with capture(models[1]) as eager:
        models[1](images)
    for own, other, weights in zip(attention.values(), eager.values(), expected, strict=True):
        assert (own.kind, other.kind) == ("kernel", "softmax")
        torch.testing.assert_close(own.weights, weights, rtol=0, atol=1e-6)
        assert torch.equal(other.weights, weights)


def test_under_autocast_the_weights_stay_exact(randomise: Draw) -> None:
    module, x = randomise(NewerAttention(64, 2)).float(), torch.randn(B, 16, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), capture(module) as attention:
        module(x)
    weights = attention.get_layer(0).weights
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, 2, 16), rtol=0, atol=1e-6)
    q, k, _ = F.linear(x.bfloat16(), module.in_proj_weight.bfloat16()).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
    expected = (q.detach().float() @ k.detach().float().mT / 32**0.5).softmax(-1)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)
