"""Hooks: a visitor's result replaces the output of heads, or their weights."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall, Call, Softmax
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.hooks import watch_layers
from vitkit.interpret.see.layers import CaptureError, find_attention_layers, select_layers
from vitkit.nn import Attention

Draw = Callable[[nn.Module], nn.Module]
B, T = 2, 3


class Kernel(nn.Module):
    """Named attention in its derived classes only, so that it must be named."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(*self.heads(x)).transpose(1, 2).flatten(2))


class OwnAttention(Kernel):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return self.out((F.softmax(q @ k.mT / 2, dim=-1) @ v).transpose(1, 2).flatten(2))


LAYERS = {"own": lambda: Attention(8, 2), "kernel": Kernel, "softmax": OwnAttention}


@torch.no_grad()
@pytest.mark.parametrize("kind", LAYERS)
def test_zeroed_head_equals_zeroed_columns(kind: str, randomise: Draw) -> None:
    module, x = randomise(LAYERS[kind]()), torch.randn(B, T, 8).double()

    def without(name: str, call: AttentionCall) -> Tensor:
        changed = (call.compute_weights() if isinstance(call, Softmax) else call.compute_output()).clone()
        changed[:, 1] = 0
        return changed

    with watch_layers({"layer": module}, without):
        removed = module(x)
    module.out.weight[:, 4:] = 0
    torch.testing.assert_close(removed, module(x))


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [True, False])
def test_zeroed_head_of_multihead_attention_equals_zeroed_columns(batch_first: bool, randomise: Draw) -> None:
    module, x = randomise(nn.MultiheadAttention(8, 2, batch_first=batch_first)), torch.randn(B, T, 8).double()

    def without(name: str, call: AttentionCall) -> Tensor:
        return (
            call.compute_output() * torch.tensor([1, 0])[:, None, None]
            if isinstance(call, Call)
            else call.probabilities
        )

    with watch_layers({"layer": module}, without):
        removed = module(x, x, x)[0]
    module.out_proj.weight[:, 4:] = 0
    torch.testing.assert_close(removed, module(x, x, x)[0])


@torch.no_grad()
@pytest.mark.parametrize("kind", LAYERS)
def test_outer_visitor_sees_the_original_call(kind: str, randomise: Draw) -> None:
    """Both look at the layer's own; the change of either stands, and both are gone afterwards."""
    module, x = randomise(LAYERS[kind]()), torch.randn(B, T, 8).double()
    order: list[str] = []

    def look(name: str, call: AttentionCall) -> None:
        order.append(name)

    def nothing(name: str, call: AttentionCall) -> Tensor:
        order.append(name)
        return torch.zeros_like(call.compute_weights() if isinstance(call, Softmax) else call.compute_output())

    plain = module(x)
    with watch_layers({"outer": module}, look), watch_layers({"inner": module}, nothing):
        changed = module(x)
    assert order == ["outer", "inner"]
    torch.testing.assert_close(changed, module.out.bias.expand(B, T, 8))
    assert torch.equal(module(x), plain)


def test_a_layer_inside_another_is_the_one_that_attends() -> None:
    class AttentionBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.mlp = OwnAttention(), nn.Linear(8, 8)

    model = nn.Sequential(AttentionBlock(), AttentionBlock(), Kernel())
    assert list(find_attention_layers(model)) == ["0.attn", "1.attn"]
    for patterns, names in (
        ((), ["0.attn", "1.attn"]),
        ((-1,), ["1.attn"]),
        (("1", 0), ["0.attn", "1.attn"]),
        (("*.attn",), ["0.attn", "1.attn"]),
        (("2",), ["2"]),
        (("0.mlp",), ["0.mlp"]),
    ):
        assert list(select_layers(model, patterns)) == names


def test_selected_layer_without_attention_is_refused() -> None:
    model = nn.Sequential(Kernel(), nn.Linear(8, 8))
    message = r"1 of 2 selected layers showed no attention: 1 \(Linear\)"
    with torch.no_grad(), pytest.raises(CaptureError, match=message), capture(model, "0", "1"):
        model(torch.randn(B, T, 8))


def test_keyboard_interrupt_removes_hooks() -> None:
    """Hooks after a pass are told of exceptions, but not of this."""

    class StoppedAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    model = nn.Sequential(StoppedAttention())
    with pytest.raises(KeyboardInterrupt), capture(model), capture(model):
        model(torch.ones(1))
    assert not torch.overrides._get_current_function_mode_stack()
    assert not model[0]._forward_hooks


@torch.no_grad()
@pytest.mark.parametrize("S", [2, 5])
def test_a_causal_kernel_counts_from_the_upper_left(S: int) -> None:
    class CausalAttention(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, torch.eye(S).to(q).expand(B, 2, S, S), is_causal=True)

    module, q, k = CausalAttention(), torch.randn(B, 2, 3, 4).double(), torch.randn(B, 2, S, 4).double()
    with capture(module) as attention:
        weights = module(q, k)  # which is what it gathers of a basis
    torch.testing.assert_close(attention.get_layer(0).weights, weights)


def test_captured_softmax_has_no_graph(randomise: Draw) -> None:
    module = randomise(OwnAttention())
    with capture(module) as attention:
        assert module(torch.randn(B, T, 8).double()).requires_grad
    assert not attention.get_layer(0).weights.requires_grad


@torch.no_grad()
def test_later_in_place_changes_are_not_captured(randomise: Draw) -> None:
    class BusyAttention(Kernel):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.heads(x)
            weights = (q @ k.mT / 2).softmax(-1)
            return self.out((weights.mul_(0.5) @ v).transpose(1, 2).flatten(2))

    module = randomise(BusyAttention())
    with capture(module) as attention:
        module(torch.randn(B, T, 8).double())
    torch.testing.assert_close(attention.get_layer(0).weights.sum(-1), torch.ones(B, 2, T).double())


@torch.no_grad()
def test_layers_of_different_sizes_share_one_budget(randomise: Draw) -> None:
    module, x = randomise(nn.Sequential(Attention(8, 2), Attention(8, 2, bias=False))), torch.randn(B, T, 8).double()
    each = B * 2 * T * T * 8  # bytes
    with capture(module, budget=2 * each):
        module(x)
    with (
        pytest.raises(ValueError, match=f"budget={2 * each - 1} B for {2 * each} B"),
        capture(module, budget=2 * each - 1),
    ):
        module(x)
