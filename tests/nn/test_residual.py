from functools import partial

import pytest
import torch
from lightning.pytorch.plugins.precision import HalfPrecision
from torch import nn
from torch.testing import assert_close

from vitkit.nn import Encoder, Message, PostNorm, PreNorm
from vitkit.nn.residual import Residual


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_pre_and_post_norm_equal_equations():
    x = torch.randn(2, 3, 8)
    norm = nn.LayerNorm(8)
    assert_close(PreNorm(Double(), 8, nn.LayerNorm)(x), x + 2 * norm(x))
    assert_close(PostNorm(Double(), 8, nn.LayerNorm)(x), norm(x + 2 * x))


def test_layer_scale_has_initial_value_and_multiplies_branch():
    residual, x = PreNorm(Double(), 8, nn.LayerNorm, scale=1e-5), torch.randn(2, 3, 8)
    assert residual.scale is not None and residual.scale.tolist() == pytest.approx([1e-5] * 8)
    with torch.no_grad():
        residual.scale.copy_(torch.arange(8.0))
    assert_close(residual(x), x + 2 * nn.LayerNorm(8)(x) * torch.arange(8.0))


def test_drop_path_skips_samples_in_training_and_keeps_the_mean():
    residual, x = PreNorm(Double(), 8, nn.Identity, 0.25), torch.ones(8000, 3, 8)
    y = residual(x)
    assert y.flatten(1).unique(dim=0).shape[0] == 2
    assert_close(y.eq(1).float().mean().item(), 0.25, atol=0.02, rtol=0)  # 8000 draws: sd 0.005
    assert_close(y.mean().item(), 3.0, atol=0.05, rtol=0)
    assert_close(residual.eval()(x), 3 * x)


@pytest.mark.parametrize("drop", [0.1, 0.25, 0.9])
def test_drop_path_under_bf16_true_skips_the_samples_that_it_skips_in_float32(drop):
    residual, x = PreNorm(Double(), 8, nn.Identity, drop), torch.ones(4000, 3, 8)
    half = HalfPrecision("bf16-true")
    torch.manual_seed(1)
    skipped = residual(x)[:, 0, 0] == 1
    torch.manual_seed(1)
    with half.forward_context():
        y = residual(half.convert_input(x))
    assert y.dtype == torch.bfloat16
    assert torch.equal(y[:, 0, 0] == 1, skipped)
    assert skipped.float().mean().item() == pytest.approx(drop, abs=0.03)  # 4000 draws: sd at most 0.007


def test_dropout_acts_on_elements_of_the_branch():
    residual, x = PreNorm(Double(), 8, nn.Identity, dropout=0.5), torch.ones(100, 3, 8)
    assert sorted(residual(x).unique().tolist()) == [1.0, 5.0]
    assert_close(residual.eval()(x), 3 * x)


def test_drop_path_rises_linearly_over_blocks():
    encoder = Encoder(32, 5, 4, drop_path=0.4, residual=partial(PreNorm, scale=0.1))
    drops = [m.drop for m in encoder.modules() if isinstance(m, Residual)]
    assert drops == pytest.approx([d for drop in (0.0, 0.1, 0.2, 0.3, 0.4) for d in (drop, drop)])


def fuse(dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))


def test_message_equals_equation():
    residual, x = Message(Double(), 8, nn.LayerNorm, fuse=fuse), torch.randn(2, 3, 8)
    assert_close(residual(x), x + residual.fuse(torch.cat([x, nn.LayerNorm(8)(2 * x)], -1)))


def test_drop_path_skips_the_fusion_of_a_message():
    residual, x = Message(Double(), 8, nn.LayerNorm, 0.5, fuse=fuse), torch.randn(200, 3, 8)
    trained, whole = residual(x), residual.eval()(x)
    kept = trained.ne(x).flatten(1).any(1)
    assert 60 < kept.sum() < 140  # 200 draws: sd 7
    assert torch.equal(trained[~kept], x[~kept])
    assert_close(trained[kept], x[kept] + 2 * (whole - x)[kept])


def test_messages_work_as_residuals_of_an_encoder(randomise):
    encoder = randomise(Encoder(32, 2, 4, memory_dim=24, residual=partial(Message, fuse=fuse)))
    x, memory = torch.randn(2, 5, 32).double(), torch.randn(2, 3, 24).double()
    block = encoder.blocks[0]
    expected = block.mlp(block.cross(block.attn(x), memory))
    assert_close(block(x, memory=memory), expected)
