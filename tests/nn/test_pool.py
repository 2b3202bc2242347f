from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitkit.nn import Attend, First, Mean


def test_first_is_the_cls_token():
    x = torch.randn(2, 5, 8)
    assert torch.equal(First(8, 1)(x), x[:, 0])
    with pytest.raises(ValueError, match="prefix=0; pool by Mean"):
        First(8, 0)


def test_mean_leaves_prefix_tokens_out_and_norms_the_mean(randomise):
    x, pool = torch.randn(2, 5, 8).double(), randomise(Mean(8, 2, norm=nn.LayerNorm))
    assert_close(pool(x), pool.norm(x[:, 2:].mean(1)))
    assert_close(Mean(8, 0)(x), x.mean(1))


def test_attend_does_not_see_order_and_reads_every_token(randomise):
    pool, x = randomise(Attend(8, 1, heads=2)), torch.randn(2, 5, 8).double().requires_grad_()
    y = pool(x)
    assert y.shape == (2, 8)
    assert_close(pool(x[:, torch.randperm(5)]), y)
    assert torch.autograd.grad(y.sum(), x)[0].abs().sum(-1).gt(0).all()


@pytest.mark.parametrize("pool", [First, Mean, partial(Attend, heads=2)])
def test_pools_keep_half_precision(pool):
    assert pool(8, 1).bfloat16()(torch.randn(2, 5, 8).bfloat16()).dtype == torch.bfloat16
