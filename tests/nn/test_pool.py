from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitkit.nn import Attend, EndOfText, First, Last, Mean


def test_first_is_the_cls_token():
    x = torch.randn(2, 5, 8)
    assert torch.equal(First(8, 1)(x), x[:, 0])
    with pytest.raises(ValueError, match="prefix=0; pool by Mean"):
        First(8, 0)


def test_mean_excludes_prefix_tokens_and_normalises(randomise):
    x, pool = torch.randn(2, 5, 8).double(), randomise(Mean(8, 2, norm=nn.LayerNorm))
    assert_close(pool(x), pool.norm(x[:, 2:].mean(1)))
    assert_close(Mean(8, 0)(x), x.mean(1))


def test_attend_is_permutation_invariant_and_uses_every_token(randomise):
    pool, x = randomise(Attend(8, 1, heads=2)), torch.randn(2, 5, 8).double().requires_grad_()
    y = pool(x)
    assert y.shape == (2, 8)
    assert_close(pool(x[:, torch.randperm(5)]), y)
    assert torch.autograd.grad(y.sum(), x)[0].abs().sum(-1).gt(0).all()


@pytest.mark.parametrize("pool", [First, Mean, partial(Attend, heads=2)])
def test_pools_keep_half_precision(pool):
    assert pool(8, 1).bfloat16()(torch.randn(2, 5, 8).bfloat16()).dtype == torch.bfloat16


def test_end_of_text_pools_first_end_token():
    x, ids = torch.randn(3, 4, 8), torch.tensor([[5, 9, 0, 0], [5, 7, 7, 9], [9, 99, 9, 9]])
    assert torch.equal(EndOfText(end=9)(x, ids), torch.stack([x[0, 1], x[1, 3], x[2, 0]]))


def test_text_without_end_token_is_rejected():
    with pytest.raises(ValueError, match=r"must hold the id end=9, got none in rows \[1\]"):
        EndOfText(end=9)(torch.randn(2, 3, 8), torch.tensor([[5, 9, 0], [5, 7, 0]]))


def test_last_pools_last_token_including_padding():
    x = torch.randn(2, 3, 8)
    assert torch.equal(Last()(x, torch.tensor([[5, 9, 0], [5, 7, 9]])), x[:, 2])
