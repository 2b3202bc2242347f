from functools import partial

import pytest
import torch

from vitkit.models import ViT
from vitkit.nn import Attend, Attention, Encoder, LayerNorm, PreNorm, RelativeBias
from vitkit.optim import WarmupCosine, groups


def test_only_matrices_decay_checked_by_name():
    encoder = Encoder(
        32,
        1,
        4,
        residual=partial(PreNorm, scale=1e-5),
        attention=partial(Attention, qk_norm=LayerNorm),
        position=partial(RelativeBias, axes=2, prefix=5),
    )
    model = ViT(encoder, (16, 24), (8, 8), 5, prefix=5, pool=partial(Attend, heads=4))
    decayed, plain = groups(model, 1e-3, 0.05)
    assert decayed.parameters.keys() == {
        "embed.patches.weight",
        "encoder.blocks.0.attn.f.qkv.weight",
        "encoder.blocks.0.attn.f.out.weight",
        "encoder.blocks.0.mlp.f.up.weight",
        "encoder.blocks.0.mlp.f.down.weight",
        "pool.attn.q.weight",
        "pool.attn.kv.weight",
        "pool.attn.out.weight",
        "pool.mlp.f.up.weight",
        "pool.mlp.f.down.weight",
        "head.weight",
    }
    added = {"embed.prefix", "embed.table.weight", "pool.query", "encoder.position.weight", "encoder.norm.weight"}
    assert added < plain.parameters.keys()
    assert len(decayed.parameters) + len(plain.parameters) == len(list(model.parameters()))
    assert (decayed.weight_decay, plain.weight_decay, decayed.lr, plain.lr) == (0.05, 0.0, 1e-3, 1e-3)


def test_frozen_parameters_are_left_out():
    model = ViT(Encoder(32, 1, 4), (16, 16), (8, 8), 5)
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    assert [list(group.parameters) for group in groups(model, 1e-3, 0.05)] == [["head.weight"], ["head.bias"]]


def test_the_learning_rate_rises_falls_and_ends_at_the_floor():
    factors = [WarmupCosine(11, warmup=3, floor=0.1)(step) for step in range(11)]
    assert factors[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert factors[3:] == sorted(factors[3:], reverse=True) and factors[-1] == pytest.approx(0.1)
    assert factors[3 + 7 // 2 + 0] > 0.55 > factors[3 + 7 // 2 + 1]
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, WarmupCosine(4))
    rates = []
    for _ in range(4):
        rates.append(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()
    assert rates == pytest.approx([2.0, 1.5, 0.5, 0.0])
    with pytest.raises(ValueError, match="below the 3 steps of the run, got warmup=5"):
        WarmupCosine(3, warmup=5)
