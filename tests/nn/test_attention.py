from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.nn import Attention, ExplicitCore, FusedCore, MeasuredCore, masks
from vitkit.nn.attention import explicit_is_faster, fast_bfloat16

random = partial(torch.randn, dtype=torch.float64, requires_grad=True)


def masks_of(T: int, S: int) -> dict[str, Tensor | None]:
    keys, rows = torch.rand(2, 1, 1, S) < 0.7, torch.rand(2, 4, T, S) < 0.6
    empty = rows.clone()
    empty[:, :, 0] = False
    return {"none": None, "keys": keys, "rows": rows, "empty": empty}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", ["none", "keys", "rows", "empty"])
@pytest.mark.parametrize("T", [1, 3, 7])
def test_explicit_core_equals_fused_in_value_and_gradient(kv_heads, causal, biased, kind, T):
    q, k, v = random(2, 4, T, 8), random(2, kv_heads, 7, 8), random(2, kv_heads, 7, 8)
    bias = random(1, 4, T, 7) if biased else None
    inputs = [q, k, v] + ([bias] if biased else [])
    mask = masks_of(T, 7)[kind]
    results = [core(q, k, v, mask, bias, causal, 0.3) for core in (ExplicitCore(), FusedCore(), MeasuredCore())]
    grads = [torch.autograd.grad(y.sin().sum(), inputs) for y in results]
    for other, grad in zip(results[1:], grads[1:], strict=True):
        assert_close(other, results[0])
        assert_close(grad, grads[0])


@pytest.mark.parametrize("core", [FusedCore(), ExplicitCore()])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_row_with_nothing_to_look_at_is_zero_with_finite_gradients(core, biased, dtype):
    q, k, v = (torch.randn(2, 4, 5, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 4, 5, 5, dtype=dtype, requires_grad=True) if biased else None
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[0, :, 2] = False
    y = core(q, k, v, mask, bias)
    assert y[0, :, 2].eq(0).all() and y[1].ne(0).any()
    grads = torch.autograd.grad(y.float().square().sum(), [q, k, v] + ([bias] if biased else []))
    assert all(grad.isfinite().all() for grad in grads)
    assert grads[0][0, :, 2].eq(0).all()


def test_causal_queries_are_the_last_of_the_keys():
    q, k, v = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4)
    for core in (FusedCore(), ExplicitCore()):
        assert_close(core(q, k, v, causal=True), core(q, k, v))


def test_dropout_keeps_the_mean_of_the_explicit_weights():
    q, k, v = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4), torch.ones(1, 1, 5, 4)
    gathered = ExplicitCore()(q.expand(4000, -1, -1, -1), *(x.expand(4000, -1, -1, -1) for x in (k, v)), dropout=0.3)
    assert_close(gathered.mean(0), torch.ones(1, 3, 4), atol=0.05, rtol=0)  # mean of 4000 draws, sd about 0.4
    assert gathered.std() > 0.1


@pytest.mark.parametrize("memory_dim", [None, 24])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(None, None), (2, None), (1, 6)])
def test_attention_is_the_equation(memory_dim, kv_heads, head_dim, randomise):
    norm = partial(nn.RMSNorm, eps=1e-6)
    layer = randomise(
        Attention(32, 4, memory_dim, kv_heads=kv_heads, head_dim=head_dim, scale=0.4, qk_norm=norm, bias=True)
    )
    x, memory = torch.randn(2, 3, 32).double(), memory_dim and torch.randn(2, 5, memory_dim).double()
    Dh, K, source = head_dim or 8, kv_heads or 4, x if memory is None else memory
    if memory_dim is None:
        wq, wk, wv = layer.qkv.weight.split([4 * Dh, K * Dh, K * Dh])
        bq, bk, bv = layer.qkv.bias.split([4 * Dh, K * Dh, K * Dh])
    else:
        (wq, bq), (wk, wv) = (layer.q.weight, layer.q.bias), layer.kv.weight.chunk(2)
        bk, bv = layer.kv.bias.chunk(2)
    heads = []
    for h in range(4):
        own, shared = slice(h * Dh, (h + 1) * Dh), slice(h * K // 4 * Dh, (h * K // 4 + 1) * Dh)
        q = layer.q_norm(x @ wq[own].T + bq[own])
        k = layer.k_norm(source @ wk[shared].T + bk[shared])
        v = source @ wv[shared].T + bv[shared]
        heads.append((q @ k.mT * 0.4).softmax(-1) @ v)
    expected = torch.cat(heads, -1) @ layer.out.weight.T + layer.out.bias
    assert_close(layer(x, memory), expected)


def test_the_weights_can_be_read_and_replaced_by_a_hook():
    layer, x = Attention(32, 4).eval(), torch.randn(2, 5, 32)
    core = layer.core = ExplicitCore()
    seen = []
    with core.weights.register_forward_hook(lambda _m, _i, weights: seen.append(weights)):
        layer(x)
    assert_close(seen[0].sum(-1), torch.ones(2, 4, 5))
    with core.weights.register_forward_hook(lambda _m, _i, weights: torch.zeros_like(weights)):
        assert_close(layer(x), layer.out.bias.expand(2, 5, 32))


def test_silencing_every_head_leaves_the_bias():
    layer, x = Attention(32, 4), torch.randn(2, 5, 32)
    with layer.heads.register_forward_hook(lambda _m, _i, heads: torch.zeros_like(heads)):
        assert_close(layer(x), layer.out.bias.expand(2, 5, 32))


def test_attention_dropout_is_for_training_only():
    layer, x = Attention(32, 4, dropout=0.5), torch.randn(2, 5, 32)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_wrong_sizes_say_which():
    with pytest.raises(ValueError, match=r"dim must be a multiple of heads.* got dim=30, heads=4"):
        Attention(30, 4)
    with pytest.raises(ValueError, match=r"heads must be a multiple of kv_heads, got heads=4, kv_heads=3"):
        Attention(32, 4, kv_heads=3)
    with pytest.raises(ValueError, match="memory_dim=24"):
        Attention(32, 4, 24)(torch.randn(1, 2, 32))
    with pytest.raises(ValueError, match="memory_dim=None"):
        Attention(32, 4)(torch.randn(1, 2, 32), torch.randn(1, 2, 24))


def test_the_choice_of_core_is_a_function_of_what_was_measured():
    assert explicit_is_faster("cpu", torch.bfloat16, 197, True) == fast_bfloat16("cpu")
    assert not explicit_is_faster("cpu", torch.bfloat16, 1024, True)
    assert not explicit_is_faster("cpu", torch.bfloat16, 197, False)
    assert not explicit_is_faster("cpu", torch.float32, 197, True)
    assert not explicit_is_faster("cuda", torch.bfloat16, 197, True)


def test_a_mask_narrows_a_causal_layer():
    layer = Attention(32, 4, causal=True).eval()
    x, valid = torch.randn(2, 6, 32), torch.ones(2, 6, dtype=torch.bool)
    valid[:, 4:] = False
    assert_close(layer(x, mask=masks.padding(valid))[:, :4], layer(x[:, :4]))
