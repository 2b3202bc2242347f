from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitkit.nn import ExplicitCore, FusedCore, LinearCore, MeasuredCore, WindowCore, masks
from vitkit.nn.cores import explicit_is_faster, has_fast_bfloat16

random = partial(torch.randn, dtype=torch.float64, requires_grad=True)


def build_masks(T: int, S: int) -> dict[str, Tensor | None]:
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
    mask = build_masks(T, 7)[kind]
    results = [core(q, k, v, mask, bias, causal, 0.3) for core in (ExplicitCore(), FusedCore(), MeasuredCore())]
    grads = [torch.autograd.grad(y.sin().sum(), inputs) for y in results]
    for other, grad in zip(results[1:], grads[1:], strict=True):
        assert_close(other, results[0])
        assert_close(grad, grads[0])


@pytest.mark.parametrize("core", [FusedCore(), ExplicitCore()])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_query_without_keys_gives_zero_and_finite_gradients(core, biased, dtype):
    q, k, v = (torch.randn(2, 4, 5, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 4, 5, 5, dtype=dtype, requires_grad=True) if biased else None
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[0, :, 2] = False
    y = core(q, k, v, mask, bias)
    assert y[0, :, 2].eq(0).all() and y[1].ne(0).any()
    grads = torch.autograd.grad(y.float().square().sum(), [q, k, v] + ([bias] if biased else []))
    assert all(grad.isfinite().all() for grad in grads)
    assert grads[0][0, :, 2].eq(0).all()


def test_causal_queries_are_aligned_with_the_last_keys():
    q, k, v = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4)
    for core in (FusedCore(), ExplicitCore()):
        assert_close(core(q, k, v, causal=True), core(q, k, v))


def test_dropout_of_explicit_weights_keeps_the_mean():
    q, k, v = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4), torch.ones(1, 1, 5, 4)
    output = ExplicitCore()(q.expand(4000, -1, -1, -1), *(x.expand(4000, -1, -1, -1) for x in (k, v)), dropout=0.3)
    assert_close(output.mean(0), torch.ones(1, 3, 4), atol=0.05, rtol=0)  # mean of 4000 draws, sd about 0.4
    assert output.std() > 0.1


def test_explicit_is_faster_only_for_short_bfloat16_training_on_cpu():
    assert explicit_is_faster("cpu", torch.bfloat16, 197, True) == has_fast_bfloat16("cpu")
    assert not explicit_is_faster("cpu", torch.bfloat16, 1024, True)
    assert not explicit_is_faster("cpu", torch.bfloat16, 197, False)
    assert not explicit_is_faster("cpu", torch.float32, 197, True)
    assert not explicit_is_faster("cuda", torch.bfloat16, 197, True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("T", "S"), [(9, 9), (3, 9), (1, 9), (9, 5), (9, 3), (3, 3)])
def test_window_core_equals_explicit_core_with_window_mask(causal, T, S):
    q, k, v = random(2, 4, T, 8), random(2, 2, S, 8), random(2, 2, S, 8)
    bias, mask = random(1, 4, T, S), torch.rand(2, 1, T, S) < 0.8
    near = torch.tensor(
        [[abs(row - key) < 4 and not (causal and key > row) for key in range(S)] for row in range(S - T, S)]
    )
    for padding in (None, mask):
        windowed = WindowCore(size=4)(q, k, v, padding, bias, causal, 0.3)
        assert_close(windowed, ExplicitCore()(q, k, v, masks.join(padding, near[None, None]), bias, False, 0.3))


def test_window_over_all_keys_equals_full_attention():
    q, k, v = random(2, 4, 5, 8), random(2, 4, 5, 8), random(2, 4, 5, 8)
    assert torch.equal(WindowCore(size=5)(q, k, v, causal=True), MeasuredCore()(q, k, v, causal=True))
    assert not torch.allclose(WindowCore(size=4)(q, k, v, causal=True), MeasuredCore()(q, k, v, causal=True))
    with pytest.raises(ValueError, match="size must be at least 1, got size=0"):
        WindowCore(size=0)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("padded", [False, True])
def test_linear_core_equals_formula(kv_heads, padded):
    B, H, T, S = 2, 4, 3, 6
    q, k, v = random(B, H, T, 8), random(B, kv_heads, S, 8), random(B, kv_heads, S, 8)
    valid = torch.ones(B, S, dtype=torch.bool)
    valid[0, 4:] = valid[1, 0] = not padded
    phi = lambda x: torch.where(x > 0, x + 1, x.exp())  # noqa: E731
    expected = torch.zeros(B, H, T, 8, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            group = h * kv_heads // H
            for t in range(T):
                terms = [(phi(q[b, h, t]) @ phi(k[b, group, s]), v[b, group, s]) for s in range(S) if valid[b, s]]
                total = sum(weight for weight, _ in terms) + 1e-6
                expected[b, h, t] = sum(weight * value for weight, value in terms) / total
    mask = masks.padding(valid) if padded else None
    output = LinearCore()(q, k, v, mask)
    assert_close(output, expected, rtol=0, atol=1e-12)
    if padded:  # values in the padding have no effect
        other = [torch.where(valid[:, None, :, None], x, 7.0) for x in (k, v)]
        assert_close(LinearCore()(q, *other, mask), output, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_linear_core_in_low_precision_is_accurate_over_many_keys(dtype):
    """Sums over 20,000 keys overflow in float16."""
    q, k, v = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 20_000, 16), 1 + torch.randn(1, 2, 20_000, 16)
    mask = torch.ones(1, 1, 1, 20_000, dtype=torch.bool)
    expected = LinearCore()(*(x.double() for x in (q, k, v)))
    output = LinearCore()(*(x.to(dtype) for x in (q, k, v)), mask)
    assert output.dtype == dtype
    assert_close(output.double(), expected, rtol=0.02, atol=0)
    assert LinearCore()(*(x.to(dtype) for x in (q, k, v)), ~mask).eq(0).all()  # all keys are hidden


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"causal": True}, "causal"),
        ({"mask": torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()}, "a mask for each query"),
        ({"bias": torch.zeros(1, 1, 3, 3)}, "a bias"),
        ({"scale": 0.5}, "a scale"),
        ({"dropout": 0.1}, "dropout"),
    ],
)
def test_linear_core_rejects_unsupported_options(options, name):
    q, k, v = torch.randn(3, 1, 1, 3, 8)
    with pytest.raises(ValueError, match=f"core must compute a softmax for {name}, got core=LinearCore"):
        LinearCore()(q, k, v, **options)
