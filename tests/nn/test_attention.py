from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitkit.nn import Attention, ExplicitCore, masks


@pytest.mark.parametrize("memory_dim", [None, 24])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(None, None), (2, None), (1, 6)])
def test_attention_equals_equation(memory_dim, kv_heads, head_dim, randomise):
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
        query_rows, key_rows = slice(h * Dh, (h + 1) * Dh), slice(h * K // 4 * Dh, (h * K // 4 + 1) * Dh)
        q = layer.q_norm(x @ wq[query_rows].T + bq[query_rows])
        k = layer.k_norm(source @ wk[key_rows].T + bk[key_rows])
        v = source @ wv[key_rows].T + bv[key_rows]
        heads.append((q @ k.mT * 0.4).softmax(-1) @ v)
    expected = torch.cat(heads, -1) @ layer.out.weight.T + layer.out.bias
    assert_close(layer(x, memory), expected)


def test_hook_reads_and_replaces_attention_weights():
    layer, x = Attention(32, 4).eval(), torch.randn(2, 5, 32)
    core = layer.core = ExplicitCore()
    captured = []
    with core.weights.register_forward_hook(lambda _m, _i, weights: captured.append(weights)):
        layer(x)
    assert_close(captured[0].sum(-1), torch.ones(2, 4, 5))
    with core.weights.register_forward_hook(lambda _m, _i, weights: torch.zeros_like(weights)):
        assert_close(layer(x), layer.out.bias.expand(2, 5, 32))


def test_zero_heads_leave_output_bias():
    layer, x = Attention(32, 4), torch.randn(2, 5, 32)
    with layer.heads.register_forward_hook(lambda _m, _i, heads: torch.zeros_like(heads)):
        assert_close(layer(x), layer.out.bias.expand(2, 5, 32))


def test_attention_dropout_acts_in_training_only():
    layer, x = Attention(32, 4, dropout=0.5), torch.randn(2, 5, 32)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_invalid_sizes_are_in_the_error():
    with pytest.raises(ValueError, match=r"dim must be a multiple of heads.* got dim=30, heads=4"):
        Attention(30, 4)
    for number in (3, 0, -1):
        with pytest.raises(ValueError, match=f"heads must be a multiple of kv_heads, got heads=4, kv_heads={number}"):
            Attention(32, 4, kv_heads=number)
    with pytest.raises(ValueError, match="memory_dim=24"):
        Attention(32, 4, 24)(torch.randn(1, 2, 32))
    with pytest.raises(ValueError, match="memory_dim=None"):
        Attention(32, 4)(torch.randn(1, 2, 32), torch.randn(1, 2, 24))


def test_padding_mask_combines_with_causal_mask():
    layer = Attention(32, 4, causal=True).eval()
    x, valid = torch.randn(2, 6, 32), torch.ones(2, 6, dtype=torch.bool)
    valid[:, 4:] = False
    assert_close(layer(x, mask=masks.padding(valid))[:, :4], layer(x[:, :4]))
