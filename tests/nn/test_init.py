from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitkit.models import TextTower, ViT
from vitkit.nn import Attend, Encoder, RelativeBias, init


def model(recipe) -> ViT:
    encoder = Encoder(128, 3, 4, position=partial(RelativeBias, axes=2))
    return ViT(encoder, (64, 96), (16, 16), pool=partial(Attend, heads=4), init=recipe)


def std(parameter: torch.Tensor) -> float:
    return parameter.detach().std().item()


@pytest.mark.parametrize("recipe", [init.vit, init.mae])
def test_nothing_is_left_at_its_default(recipe):
    """Every matrix has the spread of the recipe, biases are 0, norms are the identity, tokens and tables are drawn."""
    for name, parameter in model(recipe).named_parameters():
        if "norm" in name:
            assert parameter.unique().tolist() == [float(name.endswith("weight"))], name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        elif name.split(".")[-1] in ("prefix", "query") or ".table." in name or "position." in name:
            assert std(parameter) == pytest.approx(0.02, rel=0.25), name


def test_vit_scales_the_last_matrix_of_each_branch():
    vit = model(init.vit)
    block = vit.encoder.blocks[1]
    # truncation at two absolute units leaves the spread as it is
    assert std(block.attn.f.qkv.weight) == pytest.approx(0.02, rel=0.05)
    assert std(block.mlp.f.up.weight) == pytest.approx(0.02, rel=0.05)
    assert std(block.attn.f.out.weight) == pytest.approx(0.02 / 6**0.5, rel=0.05)
    assert std(block.mlp.f.down.weight) == pytest.approx(0.02 / 6**0.5, rel=0.05)
    assert std(vit.head.weight) == pytest.approx(0.02, rel=0.05)
    assert std(vit.embed.patches.weight) == pytest.approx((3 * 16 * 16) ** -0.5, rel=0.05)


def test_a_decoder_counts_its_third_branch():
    decoder = nn.Sequential(Encoder(64, 2, 4, memory_dim=32))
    init.vit(decoder)
    assert std(decoder[0].blocks[0].cross.f.out.weight) == pytest.approx(0.02 / 6**0.5, rel=0.1)


def test_mae_draws_the_fused_qkv_and_the_flattened_patches_by_xavier():
    vit = model(init.mae)
    for weight in (vit.encoder.blocks[0].attn.f.qkv.weight, vit.embed.patches.weight.flatten(1)):
        bound = (6 / sum(weight.shape)) ** 0.5
        assert_close(weight.abs().max().item(), bound, rtol=0.01, atol=0)
        assert std(weight) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_a_fresh_model_predicts_nothing_yet():
    logits = model(init.vit).eval()(torch.randn(8, 3, 64, 96))
    loss = nn.functional.cross_entropy(logits, torch.randint(1000, (8,)))
    assert loss.item() == pytest.approx(torch.tensor(1000.0).log().item(), rel=0.01)


def test_clip_draws_by_width_and_depth():
    """The spreads of CLIP's code, its token embedding and its positions included."""
    dim, depth = 128, 3
    text = TextTower(Encoder(dim, depth, 4, causal=True), vocabulary=500, context=77, outputs=96)
    block = text.encoder.blocks[1]
    expected = {
        text.embed.tokens.weight: 0.02,
        text.embed.table.weight: 0.01,
        block.attn.f.qkv.weight: dim**-0.5,
        block.attn.f.out.weight: dim**-0.5 * (2 * depth) ** -0.5,
        block.mlp.f.up.weight: (2 * dim) ** -0.5,
        block.mlp.f.down.weight: dim**-0.5 * (2 * depth) ** -0.5,
        text.head.weight: dim**-0.5,
    }
    for parameter, spread in expected.items():
        assert std(parameter) == pytest.approx(spread, rel=0.05)
    assert not any(parameter.any() for name, parameter in text.named_parameters() if name.endswith("bias"))
