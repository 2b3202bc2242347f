from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitkit.nn import ExplicitCore, FusedCore, MeasuredCore
from vitkit.nn.cores import explicit_is_faster, fast_bfloat16

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


def test_the_choice_of_core_is_a_function_of_what_was_measured():
    assert explicit_is_faster("cpu", torch.bfloat16, 197, True) == fast_bfloat16("cpu")
    assert not explicit_is_faster("cpu", torch.bfloat16, 1024, True)
    assert not explicit_is_faster("cpu", torch.bfloat16, 197, False)
    assert not explicit_is_faster("cpu", torch.float32, 197, True)
    assert not explicit_is_faster("cuda", torch.bfloat16, 197, True)
