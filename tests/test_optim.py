import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import timm.optim
import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.testing import assert_close

from vitkit.models import CLIP, MAE, TextTower, ViT
from vitkit.nn import (
    Attend,
    Attention,
    Encoder,
    EndOfText,
    LayerNorm,
    Learned,
    PatchEmbed,
    PreNorm,
    RelativeBias,
    TokenEmbed,
)
from vitkit.optim import (
    InverseSquareRoot,
    Schedule,
    WarmupCosine,
    choose_kernel,
    format_groups,
    format_parameters,
    group_parameters,
    has_fused,
)


def test_only_matrices_decay():
    encoder = Encoder(
        32,
        1,
        4,
        residual=partial(PreNorm, scale=1e-5),
        attention=partial(Attention, qk_norm=LayerNorm),
        position=partial(RelativeBias, axes=2, prefix=5),
    )
    model = ViT(encoder, (16, 24), (8, 8), 5, prefix=5, pool=partial(Attend, heads=4))
    decayed, plain = group_parameters(model, 1e-3, 0.05)
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


def test_frozen_parameters_are_in_no_group():
    model = ViT(Encoder(32, 1, 4), (16, 16), (8, 8), 5)
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    assert [list(group.parameters) for group in group_parameters(model, 1e-3, 0.05)] == [["head.weight"], ["head.bias"]]


def test_warmup_cosine_rises_falls_and_ends_at_floor():
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
    with pytest.raises(ValueError, match="at least 0, a number of steps or below 1 a share, got warmup=-1"):
        WarmupCosine(3, warmup=-1)


@pytest.mark.parametrize("schedule", [WarmupCosine, partial(InverseSquareRoot, timescale=10)])
def test_warmup_longer_than_the_run_is_a_tenth_of_it(schedule: Callable[..., Schedule]) -> None:
    short = schedule(30, warmup=30)
    assert short.note == "warmup is 3, a tenth of the 30 steps of the run, not 30"
    assert [short(step) for step in range(30)] == [schedule(30, warmup=0.1)(step) for step in range(30)]
    assert schedule(30, warmup=29).note == "" and schedule(30, warmup=29).warmup == 29


def test_layer_decay_lowers_rates_layer_by_layer() -> None:
    """Rates equal those of BEiT and MAE; timm differs in the final norm, which it puts a layer below the head."""
    model = ViT(Encoder(32, 3, 4, residual=partial(PreNorm, scale=1e-5)), (16, 24), (8, 8), 5, prefix=3)
    ours = {name: group.lr / 0.1 for group in group_parameters(model, 0.1, 0.05, 0.7) for name in group.parameters}
    assert ours.keys() == dict(model.named_parameters()).keys()
    expected = {"embed.": 0.7**4, "encoder.blocks.0.": 0.7**3, "encoder.blocks.1.": 0.7**2, "encoder.blocks.2.": 0.7}
    for name, scale in ours.items():
        (layer,) = [start for start in (*expected, "encoder.norm.", "head.") if name.startswith(start)]
        assert scale == pytest.approx(expected.get(layer, 1.0)), name


def test_layer_decay_equals_timm() -> None:
    theirs = timm.models.VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=3, num_heads=4, num_classes=5)
    scales = {
        id(p): g["lr_scale"] for g in timm.optim.param_groups_layer_decay(theirs, layer_decay=0.7) for p in g["params"]
    }
    expected = [scales[id(block.mlp.fc1.weight)] for block in theirs.blocks]
    model = ViT(Encoder(32, 3, 4), (16, 16), (8, 8), 5)
    ours = {name: group.lr for group in group_parameters(model, 1.0, 0.05, 0.7) for name in group.parameters}
    lrs = [ours[f"encoder.blocks.{layer}.mlp.f.up.weight"] for layer in range(3)]
    assert [lr / lrs[-1] for lr in lrs] == pytest.approx([scale / expected[-1] for scale in expected])
    assert ours["embed.prefix"] / lrs[0] == pytest.approx(scales[id(theirs.cls_token)] / expected[0])


def test_pre_norm_has_rate_of_embedding() -> None:
    model = ViT(Encoder(8, 2, 2), (4, 4), (2, 2), 3, pre_norm=LayerNorm)
    rates = {name: group.lr for group in group_parameters(model, 1.0, 0.1, 0.5) for name in group.parameters}
    assert rates["pre_norm.weight"] == rates["pre_norm.bias"] == rates["embed.prefix"] == 0.125
    assert rates["encoder.norm.weight"] == 1.0


def test_shared_positions_have_rate_of_embedding() -> None:
    model = ViT(Encoder(8, 2, 2, position=partial(RelativeBias, axes=2, prefix=1)), (4, 4), (2, 2), 3)
    rates = {name: group.lr for group in group_parameters(model, 1.0, 0.1, 0.5) for name in group.parameters}
    assert {rate for name, rate in rates.items() if name.startswith("encoder.position.")} == {0.125}


def collect_rates(model: torch.nn.Module) -> dict[str, float]:
    """Return the learning rate of every trained parameter at a layer decay of 1/2."""
    return {name: group.lr for group in group_parameters(model, 1.0, 0.1, 0.5) for name in group.parameters}


def build_clip() -> CLIP:
    text = TextTower(Encoder(8, 3, 2, causal=True), 10, 5, 3, pool=partial(EndOfText, end=9))
    return CLIP(ViT(Encoder(8, 1, 2), (4, 4), (2, 2), 3), text, bias=-10.0)


MAE_RATES = {
    "embed.": 0.125,
    "encoder.blocks.0.": 0.25,
    "encoder.blocks.1.": 0.5,
    "encoder.norm.": 1.0,
    "decoder.": 1.0,
}
TEXT_RATES = {
    "text.embed.": 0.0625,
    "text.encoder.blocks.0.": 0.125,
    "text.encoder.blocks.1.": 0.25,
    "text.encoder.blocks.2.": 0.5,
    "text.encoder.norm.": 1.0,
    "text.head.": 1.0,
}
IMAGE_RATES = {
    "image.embed.": 0.25,
    "image.encoder.blocks.0.": 0.5,
    "image.encoder.norm.": 1.0,
    "image.head.": 1.0,
}
TOP_RATES = {"log_scale": 1.0, "bias": 1.0}


@pytest.mark.parametrize(
    ("model", "frozen", "expected"),
    [
        pytest.param(
            MAE(Encoder(8, 2, 2), Encoder(8, 1, 2), (4, 4), (2, 2), table=Learned, decoder_table=Learned),
            "",
            MAE_RATES,
            id="mae",
        ),
        pytest.param(
            MAE(Encoder(8, 1, 2), Encoder(8, 3, 2), (4, 4), (2, 2)),
            "",
            {"embed.": 0.25, "encoder.blocks.0.": 0.5, "encoder.norm.": 1.0, "decoder.": 1.0},
            id="mae with a deeper decoder",
        ),
        pytest.param(build_clip(), "", {**IMAGE_RATES, **TEXT_RATES, **TOP_RATES}, id="clip"),
        pytest.param(build_clip(), "text", {**IMAGE_RATES, **TOP_RATES}, id="text tower frozen"),
        pytest.param(build_clip(), "image", {**TEXT_RATES, **TOP_RATES}, id="image tower frozen"),
    ],
)
def test_layers_are_counted_from_the_last_block_of_each_tower(
    model: torch.nn.Module, frozen: str, expected: dict[str, float]
) -> None:
    if frozen:
        model.get_submodule(frozen).requires_grad_(False)
    rates = collect_rates(model)
    assert rates.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, rate in rates.items():
        (start,) = [start for start in expected if name.startswith(start)]
        assert rate == expected[start], name
    assert collect_rates(torch.nn.ModuleDict({"model": model})) == {f"model.{name}": rates[name] for name in rates}


def test_mae_decoder_has_rate_of_last_layer() -> None:
    """Layers equal those of MAE's util/lr_decay.py, where all modules after the blocks are in the last layer."""
    model = MAE(Encoder(8, 2, 2), Encoder(8, 1, 2), (4, 4), (2, 2), table=Learned, decoder_table=Learned)
    layers = {group.name: {*group.parameters} for group in group_parameters(model, 1.0, 0.1, 0.5)}
    decoder = {name for name, _ in model.named_parameters() if name.startswith("decoder.")}
    assert layers["layer 3 decayed"] | layers["layer 3 plain"] == decoder | {"encoder.norm.weight", "encoder.norm.bias"}
    assert layers["layer 3 decayed"] == {
        "decoder.embed.weight",
        "decoder.encoder.blocks.0.attn.f.qkv.weight",
        "decoder.encoder.blocks.0.attn.f.out.weight",
        "decoder.encoder.blocks.0.mlp.f.up.weight",
        "decoder.encoder.blocks.0.mlp.f.down.weight",
        "decoder.pixels.weight",
    }
    assert layers["layer 0 decayed"] == {"embed.patches.weight"}


def test_encoder_without_embedding_has_rates_by_block() -> None:
    rates = collect_rates(Encoder(8, 2, 2))
    assert {
        name.rsplit(".", 1)[0]: rate for name, rate in rates.items() if "qkv" in name or name.startswith("norm.")
    } == {
        "blocks.0.attn.f.qkv": 0.25,
        "blocks.1.attn.f.qkv": 0.5,
        "norm": 1.0,
    }


class Tagger(torch.nn.Module):
    """A model that registers its embedding last."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.embed = Encoder(8, 2, 2), torch.nn.Linear(8, 3), TokenEmbed(8, 10, 5)


def test_embedding_is_first_layer_in_any_registration_order() -> None:
    rates = collect_rates(Tagger())
    assert rates["embed.tokens.weight"] == rates["embed.table.weight"] == 0.125
    assert rates["encoder.blocks.0.attn.f.qkv.weight"] == 0.25
    assert rates["head.weight"] == rates["encoder.norm.weight"] == 1.0


class Pyramid(torch.nn.Module):
    """A user's model of two stages of different widths, joined by a linear layer."""

    def __init__(self, depths: tuple[int, int]) -> None:
        super().__init__()
        self.head = torch.nn.Linear(16, 3)
        self.embed = PatchEmbed(8, (4, 4), (2, 2))
        self.pre_norm = LayerNorm(8)
        self.first = Encoder(8, depths[0], 2, position=partial(RelativeBias, axes=2, prefix=1))
        self.merge = torch.nn.Linear(8, 16)
        self.second = Encoder(16, depths[1], 2, position=partial(RelativeBias, axes=2, prefix=1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, positions = self.embed(images)
        x = self.first(self.pre_norm(x), positions)
        return self.head(self.second(self.merge(x), positions)[:, 0])


PYRAMID_RATES = {
    "embed.": 0.5**5,
    "pre_norm.": 0.5**5,
    "first.position.": 0.5**5,
    "first.blocks.0.": 0.5**4,
    "first.norm.": 0.5**3,
    "merge.": 0.5**3,
    "second.position.": 0.5**3,
    "second.blocks.0.": 0.5**3,
    "second.blocks.1.": 0.5**2,
    "second.blocks.2.": 0.5,
    "second.norm.": 1.0,
    "head.": 1.0,
}


def test_blocks_of_stacked_encoders_are_counted_together() -> None:
    model = Pyramid((1, 3))
    model(torch.randn(2, 3, 4, 4)).sum().backward()  # the stages form one network
    for start, module in (("", model), ("0.", torch.nn.Sequential(model))):
        rates = collect_rates(module)
        assert rates.keys() == {start + name for name, _ in model.named_parameters()}
        for name, rate in rates.items():
            (part,) = [part for part in PYRAMID_RATES if name.startswith(start + part)]
            assert rate == PYRAMID_RATES[part], name


def test_stages_in_a_list_and_separate_tower_are_counted_apart() -> None:
    stages = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 8), Encoder(8, 1, 2)) for _ in range(2))
    rates = collect_rates(torch.nn.ModuleDict({"tower": ViT(Encoder(8, 1, 2), (4, 4), (2, 2), 3), "stages": stages}))
    assert {
        name: rates[name] for name in rates if "qkv.weight" in name or name.endswith(("0.weight", "head.weight"))
    } == {
        "tower.encoder.blocks.0.attn.f.qkv.weight": 0.5,
        "tower.head.weight": 1.0,
        "stages.0.0.weight": 1.0,  # before the first Encoder only embeddings are in a layer
        "stages.0.1.blocks.0.attn.f.qkv.weight": 0.25,
        "stages.1.0.weight": 0.5,
        "stages.1.1.blocks.0.attn.f.qkv.weight": 0.5,
    }


def test_layer_decay_rejects_models_without_layers() -> None:
    with pytest.raises(ValueError, match="layer_decay must be 1 for a model without an Encoder, got Linear"):
        group_parameters(torch.nn.Linear(2, 2), 0.1, 0.0, 0.5)
    with pytest.raises(ValueError, match="layer_decay must be above 0 and at most 1, got layer_decay=1.5"):
        group_parameters(ViT(Encoder(32, 1, 4), (16, 16), (8, 8), 5), 0.1, 0.0, 1.5)


def test_groups_are_formatted_as_table_and_by_parameter() -> None:
    model = ViT(Encoder(32, 1, 4), (16, 16), (8, 8), 5)
    model.embed.requires_grad_(False)
    groups = group_parameters(model, 0.1, 0.05, 0.5)
    rows = [row.rsplit(maxsplit=4) for row in format_groups(groups).splitlines()[1:]]
    assert ["layer 1 decayed", "4", "12,288", "0.05", "0.05"] in rows
    assert ["layer 2 plain", "3", "69", "0", "0.1"] in rows and len(rows) == 4
    lines = {line.split()[0]: line.split()[1:] for line in format_parameters(model, groups).splitlines()}
    assert lines["embed.prefix"] == ["1", "x", "32", "frozen"]
    assert lines["head.weight"] == ["5", "x", "32", "layer", "2", "decayed", "0.05", "0.1"]
    assert lines["encoder.blocks.0.mlp.norm.bias"] == ["32", "layer", "1", "plain", "0", "0.05"]


def test_inverse_square_root_halves_after_three_timescales_and_ends_at_zero() -> None:
    schedule = InverseSquareRoot(1000, warmup=10, timescale=100, cooldown=50)
    factors = [schedule(step) for step in range(1000)]
    assert factors[4] == pytest.approx(5 / 11) and factors[10] == 1.0
    assert factors[310] == pytest.approx(0.5) and factors[810] == pytest.approx(1 / 3)
    assert factors[949] == pytest.approx((1 + 939 / 100) ** -0.5)
    assert factors[974] == pytest.approx((1 + 964 / 100) ** -0.5 / 2) and factors[-1] == 0.0
    assert InverseSquareRoot(1000, timescale=100)(999) == pytest.approx((1 + 999 / 100) ** -0.5)
    with pytest.raises(ValueError, match="got timescale=100, cooldown=95 of 90"):
        InverseSquareRoot(100, warmup=10, timescale=100, cooldown=95)


def test_warmup_below_one_is_a_fraction_of_the_run() -> None:
    assert [WarmupCosine(40, warmup=0.1)(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert WarmupCosine(5, warmup=0.1)(0) == 1.0
    assert InverseSquareRoot(40, warmup=0.5, timescale=10)(20) == 1.0


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["cpu"], True),
        (["cuda"], True),
        (["cpu", "cuda"], True),
        (["mps"], False),
        (["cpu", "meta"], False),
        ([], False),
    ],
)
def test_fused_kernel_exists_for_cpu_and_cuda(devices: list[str], expected: bool) -> None:
    assert has_fused(devices) is expected


def list_kernels(optimizer: Optimizer) -> list[Any]:
    return [group.get("fused") for group in optimizer.param_groups]


def test_adamw_is_fused_unless_kernel_is_given() -> None:
    def choose(kind: Callable[..., Optimizer], device: str = "cpu", **options: Any) -> list[Any]:
        weights = [torch.zeros(2, device=device, requires_grad=True) for _ in range(2)]
        optimizer = kind([{"params": [weight]} for weight in weights], lr=0.1, **options)
        choose_kernel(optimizer)
        return list_kernels(optimizer)

    assert choose(AdamW) == [True, True]
    assert choose(AdamW, fused=False) == [False, False]
    assert choose(AdamW, foreach=False) == choose(AdamW, foreach=True) == [None, None]
    assert choose(AdamW, device="meta") == choose(SGD) == choose(AdamW, differentiable=True) == [None, None]


def test_kernel_given_by_group_is_kept_when_loading_state() -> None:
    def build() -> AdamW:
        weights = [torch.zeros(2, requires_grad=True) for _ in range(2)]
        return AdamW([{"params": weights[:1], "fused": False}, {"params": weights[1:]}], lr=0.1)

    optimizer, fused = build(), build()
    choose_kernel(optimizer)
    assert list_kernels(optimizer) == [False, True]
    fused.param_groups[0]["fused"] = True
    optimizer.load_state_dict(fused.state_dict())
    assert list_kernels(optimizer) == [False, True]


def train(steps: range, *, choose: bool, state: dict[str, Any] | None = None) -> tuple[Optimizer, list[torch.Tensor]]:
    """Train two groups in float64 by AdamW. One parameter has no gradient in every third step."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((7, 33), (5,), (3,))]
    weights = [weight.requires_grad_() for weight in (state["weights"] if state else weights)]
    parts = [{"params": weights[:1], "weight_decay": 0.1}, {"params": weights[1:], "weight_decay": 0.0}]
    optimizer = AdamW(parts, 0.05)
    if choose:
        choose_kernel(optimizer)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weights[2].grad = weights[2].grad if step % 3 else None
        optimizer.step()
    return optimizer, [weight.detach() for weight in weights]


def test_fused_kernel_equals_loop() -> None:
    (_, loop), (optimizer, fused) = train(range(20), choose=False), train(range(20), choose=True)
    assert list_kernels(optimizer) == [True, True]
    assert_close(fused, loop, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("before", [False, True], ids=["loop", "fused"])
def test_saved_state_continues_with_fused_kernel(before: bool) -> None:
    """This includes states saved before kernels were chosen, whose groups name none."""
    optimizer, weights = train(range(10), choose=before)
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "weights": weights}, file)
    file.seek(0)
    optimizer, weights = train(range(10, 20), choose=True, state=torch.load(file, weights_only=True))
    assert list_kernels(optimizer) == [True, True]
    _, whole = train(range(20), choose=before)
    rtol, atol = (0, 0) if before else (1e-12, 1e-14)
    assert_close(weights, whole, rtol=rtol, atol=atol)


def test_state_of_fused_kernel_loads_without_one() -> None:
    saved, _ = train(range(3), choose=True)
    shapes = [group["params"] for group in saved.param_groups]
    optimizer = AdamW([{"params": [torch.empty_like(p, device="meta") for p in params]} for params in shapes], 0.05)
    choose_kernel(optimizer)
    optimizer.load_state_dict(saved.state_dict())
    assert list_kernels(optimizer) == [None, None]
