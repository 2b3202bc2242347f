import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.layers.mlp import SwiGLU, SwiGLUPacked
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import ParallelThingsBlock, ResPostBlock, VisionTransformer
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.weights import compare_shapes, get_shapes, load
from vitkit.convert.timm.config import Facts, choose_architecture, make_arguments, read_config, read_facts
from vitkit.convert.timm.tensors import from_vitkit, list_left_out, to_vitkit

WEIGHTS = Path(__file__).parents[3].parent / "shared" / "weights"
SIZE, GRID = (24, 40), (3, 5)
CLIP = {"pre_norm": True, "norm_layer": partial(nn.LayerNorm, eps=1e-5)}
SWIGLU = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 5.34}


def make_reference(kind=VisionTransformer, **options) -> nn.Module:
    """Return a model of timm with random parameters."""
    sizes = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
    return randomise(kind(**{**sizes, **options}))


def randomise(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def convert(state, facts) -> tuple[nn.Module, dict]:
    config = read_config(state, facts)
    model = model_config.build_model(config).double().eval()
    load(model, to_vitkit(state, GRID))
    return model, config


def draw_images(height=SIZE[0], width=SIZE[1], channels=3) -> Tensor:
    return torch.randn(2, channels, height, width, dtype=torch.float64)


def convert_back(model, config) -> nn.Module:
    """Return a model of vitkit as one of timm."""
    exported = VisionTransformer(**make_arguments(config)).double().eval()
    exported.load_state_dict(from_vitkit(model.state_dict(), config), strict=True)
    return exported


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"no_embed_class": True},
        {"reg_tokens": 3},
        {"reg_tokens": 3, "no_embed_class": True},
        {"init_values": 0.5},
        {"qk_norm": True},
        {"qkv_bias": False},
        {"proj_bias": False},
        {"in_chans": 1, "patch_size": (8, 4), "mlp_ratio": 4304 / 1152},
        {"num_classes": 0},
        {"final_norm": False},
        {"act_layer": "gelu_tanh"},
        CLIP,
        {**CLIP, "act_layer": "quick_gelu", "reg_tokens": 1},
        SWIGLU,
        {"reg_tokens": 2, "no_embed_class": True, "init_values": 1e-5, **SWIGLU},
        {"global_pool": "avg"},
        {"global_pool": "avg", "class_token": False, "reg_tokens": 2},
        {"global_pool": "avg", "fc_norm": False, "reg_tokens": 2},
        {"global_pool": "avg", "final_norm": False},
        {"global_pool": "map", "class_token": False},
        {"global_pool": "map", "class_token": False, "mlp_ratio": 3.7362, "act_layer": "gelu_tanh"},
        {"global_pool": "map", "reg_tokens": 2, "pool_include_prefix": True},
    ],
    ids=str,
)
def test_outputs_are_equal_in_both_directions(options):
    reference = make_reference(**options)
    batch = draw_images(channels=options.get("in_chans", 3))
    expected = reference(batch)
    grid = reference.patch_embed.grid_size
    state, config = reference.state_dict(), read_config(reference.state_dict(), read_facts(reference))
    model = model_config.build_model(config).double().eval()
    load(model, to_vitkit(state, grid))
    assert_close(model(batch), expected, rtol=0, atol=1e-10)
    assert_close(convert_back(model, config)(batch), expected, rtol=0, atol=1e-10)
    assert list_left_out(state) == ()


def test_distilled_model_keeps_its_token_and_the_class_head():
    reference, batch = make_reference(VisionTransformerDistilled), draw_images()
    state = reference.state_dict()
    model, config = convert(state, read_facts(reference))
    expected = reference.head(reference.forward_features(batch)[:, 0])
    assert config["init_args"]["prefix"] == 2
    assert [note.partition(",")[0] for note in list_left_out(state)] == ["head_dist"]
    assert_close(model(batch), expected, rtol=0, atol=1e-10)
    assert_close(convert_back(model, config)(batch), expected, rtol=0, atol=1e-10)


def test_features_without_a_pool_are_equal():
    reference, batch = make_reference(global_pool="", num_classes=0, reg_tokens=1), draw_images()
    model, _ = convert(reference.state_dict(), read_facts(reference))
    assert_close(model.features(batch), reference(batch), rtol=0, atol=1e-10)


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("registers", [0, 4])
def test_names_of_dinov2_files_are_read(registers, chunks):
    reference = make_reference(
        num_classes=0, init_values=1e-5, reg_tokens=registers, no_embed_class=registers > 0, **SWIGLU
    )
    state = dict(reference.state_dict(), mask_token=torch.randn(1, 32))
    if registers:  # there CLS has a position and the registers have none
        row = torch.randn(1, 1, 32, dtype=torch.float64)
        state["register_tokens"] = state.pop("reg_token")
        state |= {"cls_token": state["cls_token"] - row, "pos_embed": torch.cat([row, state["pos_embed"]], dim=1)}
    renamed = {name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): x for name, x in state.items()}
    if chunks:
        renamed = {re.sub(r"^blocks\.(\d)", r"blocks.\1.\1", name): x for name, x in renamed.items()}
    model, _ = convert(renamed, Facts(4, SIZE, antialias=False))
    batch = draw_images()
    assert_close(model(batch), reference(batch), rtol=0, atol=1e-10)
    assert model.embed.table.resample.__name__ == "bicubic"
    assert [note.partition(",")[0] for note in list_left_out(renamed)] == ["mask_token"]


def test_names_of_deit_3_files_are_read():
    reference, batch = make_reference(init_values=0.1, no_embed_class=True), draw_images()
    state = {
        name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): tensor
        for name, tensor in reference.state_dict().items()
    }
    model, _ = convert(state, Facts(4, SIZE))
    assert_close(model(batch), reference(batch), rtol=0, atol=1e-10)


@pytest.mark.parametrize("no_embed_class", [False, True])
def test_resampled_positions_equal_timm(no_embed_class):
    reference = make_reference(dynamic_img_size=True, reg_tokens=1, no_embed_class=no_embed_class)
    batch = draw_images(56, 16)
    model, _ = convert(reference.state_dict(), read_facts(reference))
    # timm resamples in float32: about 1e-7 of positions that are about 1.
    assert_close(model(batch), reference(batch), rtol=0, atol=1e-5)


def test_gradients_are_equal():
    reference, batch = make_reference(reg_tokens=2, init_values=0.5), draw_images()
    model, _ = convert(reference.state_dict(), read_facts(reference))
    for network in (model, reference):
        network(batch).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters() if parameter.grad is not None}
    expected = to_vitkit(gradients, GRID)
    del expected["embed.prefix"]  # a sum of two leaves, each with this gradient
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if name in expected}
    assert len(gradients) == len(expected) == len(list(model.parameters())) - 1
    assert_close(gradients, expected, rtol=0, atol=1e-10)


def test_error_lists_unknown_missing_and_misshapen_tensors():
    reference = make_reference()
    state = reference.state_dict()
    model = model_config.build_model(read_config(state, read_facts(reference)))
    wrong = {name: tensor for name, tensor in state.items() if name not in ("blocks.1.attn.qkv.bias", "norm.weight")}
    wrong |= {"blocks.1.attn.gate.weight": torch.ones(32), "head.weight": torch.ones(7, 32)}
    with pytest.raises(ValueError) as error:
        load(model, to_vitkit(wrong, GRID))
    assert [line.split(":")[0] for line in str(error.value).splitlines()[1:]] == [
        "  + blocks.1.attn.gate.weight",
        "  - encoder.blocks.1.attn.f.qkv.bias",
        "  - encoder.norm.weight",
        "  ! head.weight",
    ]


@pytest.mark.parametrize("grid", [(4, 4), (7, 2)])
def test_grid_of_another_size_is_refused(grid):
    with pytest.raises(ValueError, match="grid must have as many patches"):
        to_vitkit(make_reference(reg_tokens=2).state_dict(), grid)


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({"block_fn": ParallelThingsBlock}, ["blocks of class ParallelThingsBlock"]),
        ({"block_fn": ResPostBlock}, ["blocks of class ResPostBlock"]),
        ({"attn_layer": "diff"}, ["attention of class DiffAttention"]),
        ({"mlp_layer": SwiGLU, "act_layer": nn.SiLU}, ["MLPs of class SwiGLU"]),
        ({"mlp_layer": SwiGLUPacked, "act_layer": nn.GELU}, ["a gated MLP other than SwiGLU"]),
        ({"norm_layer": "rmsnorm"}, ["norms of class RmsNorm"]),
        ({"embed_norm_layer": "layernorm"}, ["a norm of the patches"]),
        ({"pos_embed": "none"}, ["no table of positions"]),
        ({"img_size": (26, 40)}, ["a size that patches do not divide, (26, 40); take img_size=(24, 40)"]),
        ({"act_layer": "mish"}, ["the activation Mish"]),
        ({"global_pool": "", "num_classes": 5}, ["a head on every token"]),
        ({"global_pool": "token", "fc_norm": True}, ["a norm after a pool that is not a mean"]),
        ({"global_pool": "map", "reg_tokens": 2}, ["an attention pool that leaves out the prefix tokens"]),
        ({"global_pool": "prr"}, ["global_pool=prr"]),
        (
            {"global_pool": "avgmax", "dynamic_img_pad": True, "scale_attn_norm": True, "scale_mlp_norm": True},
            [
                "padding to whole patches",
                "a norm between attention and its projection",
                "a norm inside the MLPs",
                "global_pool=avgmax",
            ],
        ),
        ({"global_pool": "avg", "pool_include_prefix": True}, ["a mean that includes the prefix tokens"]),
    ],
    ids=str,
)
def test_error_lists_everything_that_a_vit_cannot_hold(options, reasons):
    with pytest.raises(ValueError) as error:
        read_facts(make_reference(**options))
    assert str(error.value) == f"timm's model is not supported: {'; '.join(reasons)}"


def test_another_class_is_refused():
    with pytest.raises(ValueError, match="the class Sequential"):
        read_facts(nn.Sequential())


@pytest.mark.parametrize(
    ("options", "facts", "message"),
    [
        ({}, Facts(5, (25, 40)), r"size must be a multiple.*take \(24, 40\); heads must divide the width 32"),
        ({}, Facts(4, SIZE, pool="max"), "pool must be token, avg, map or '', got pool='max'"),
        ({}, Facts(4, SIZE, pool="map"), "map exactly where there is an attn_pool"),
        ({}, Facts(4, SIZE, pool=""), "where there is a head"),
        ({"global_pool": "avg"}, Facts(4, SIZE), "pool must be avg where there is a fc_norm"),
        ({"global_pool": "avg", "class_token": False, "fc_norm": False}, Facts(4, SIZE), "where there is no cls_token"),
    ],
)
def test_facts_that_contradict_the_tensors_are_refused(options, facts, message):
    with pytest.raises(ValueError, match=message):
        read_config(make_reference(**options).state_dict(), facts)


def test_tensors_of_another_layout_are_refused():
    with pytest.raises(ValueError, match=r"got no pos_embed, patch_embed\.proj\.weight"):
        read_config(nn.Linear(2, 2).state_dict(), Facts(4, SIZE))
    flat = make_reference().state_dict() | {"patch_embed.proj.weight": torch.zeros(32, 192)}
    with pytest.raises(ValueError, match=r"got the shapes patch_embed\.proj\.weight \(32, 192\)"):
        read_config(flat, Facts(4, SIZE))


def make_attend(heads) -> dict:
    return {"class_path": "vitkit.nn.Attend", "init_args": {"heads": heads}}


def build_vit(encoder=None, **options) -> tuple[nn.Module, dict]:
    """Return a random ViT from a config that leaves most to defaults."""
    trunk = {"class_path": "vitkit.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 4, **(encoder or {})}}
    sizes = {"image_size": [*SIZE], "patch_size": [8, 8], "outputs": 5}
    config = {"class_path": "vitkit.ViT", "init_args": {"encoder": trunk, **sizes, **options}}
    return randomise(model_config.build_model(config)), config


@pytest.mark.parametrize(
    ("encoder", "options"),
    [
        ({}, {}),
        ({}, {"table": "vitkit.nn.Sinusoidal", "prefix": 3}),
        ({}, {"table": {"class_path": "vitkit.nn.Sinusoidal", "init_args": {"base": 100.0}}}),
        (
            {},
            {"pre_norm": "vitkit.nn.LayerNorm", "pool": make_attend(4)},
        ),
        ({"final_norm": False}, {"pool": "vitkit.nn.Mean", "prefix": 0}),
        ({"residual": {"class_path": "vitkit.nn.PreNorm", "init_args": {"scale": 0.0}}}, {}),
        ({"mlp": {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": 8 / 3}}}, {"channels": 1}),
        ({"norm": {"class_path": "torch.nn.LayerNorm", "init_args": {"eps": 1e-5}}}, {}),
    ],
)
def test_outputs_of_an_exported_model_are_equal(encoder, options):
    model, config = build_vit(encoder, **options)
    plain = {name: value for name, value in make_arguments(config).items() if name not in ("norm_layer", "mlp_layer")}
    exported = timm.create_model(choose_architecture(config), **plain).double().eval()
    exported.load_state_dict(from_vitkit(model.state_dict(), config), strict=True)
    batch = draw_images(channels=options.get("channels", 3))
    assert_close(exported(batch), model(batch), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("encoder", "options", "reasons"),
    [
        (
            {
                "position": {"class_path": "vitkit.nn.Rotary", "init_args": {"axes": 2}},
                "residual": "vitkit.nn.PostNorm",
                "attention": {"class_path": "vitkit.nn.Attention", "init_args": {"kv_heads": 2}},
            },
            {"pre_norm": {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": 1e-3}}},
            ["without kv_heads", "got PostNorm", "got Rotary", "norms must be LayerNorm with one eps"],
        ),
        ({"norm": "torch.nn.RMSNorm"}, {}, ["norm must be LayerNorm"]),
        (
            {"mlp": {"class_path": "vitkit.nn.MLP", "init_args": {"act": "torch.nn.Mish"}}},
            {},
            ["act must be one of gelu"],
        ),
        ({}, {"pool": make_attend(2)}, ["the heads and the MLP"]),
        (
            {"mlp": {"class_path": "vitkit.nn.MLP", "init_args": {"ratio": 2.0}}},
            {"pool": make_attend(4)},
            ["the heads and the MLP"],
        ),
        (
            {},
            {"pool": {"class_path": "vitkit.nn.Mean", "init_args": {"norm": "vitkit.nn.LayerNorm"}}},
            ["pool must be without a norm"],
        ),
    ],
)
def test_error_lists_everything_that_timm_cannot_hold(encoder, options, reasons):
    model, config = build_vit(encoder, **options)
    with pytest.raises(ValueError) as error:
        from_vitkit(model.state_dict(), config)
    message = str(error.value)
    assert message.startswith("the export to timm's VisionTransformer is not supported: ")
    assert len(message.split("; ")) == len(reasons)
    assert all(reason in message for reason in reasons)


def test_norms_without_an_architecture_in_timm_are_refused():
    _, config = build_vit({"norm": {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": 1e-12}}})
    with pytest.raises(ValueError, match="eps must be 1e-6"):
        choose_architecture(config)


@pytest.mark.parametrize(
    "name",
    [
        *("vit_tiny_patch16_224.augreg_in21k", "vit_small_patch16_384", "vit_base_patch16_224.mae"),
        *("vit_large_patch16_224", "vit_huge_patch14_224", "vit_small_patch14_dinov2", "vit_base_patch14_reg4_dinov2"),
        *("vit_giant_patch14_reg4_dinov2", "vit_base_patch16_clip_quickgelu_224", "vit_huge_patch14_clip_224"),
        *("vit_base_patch16_siglip_224", "vit_so400m_patch14_siglip_378", "vit_so400m_patch16_siglip_gap_256"),
        *("deit_tiny_patch16_224", "deit_base_distilled_patch16_224", "deit3_huge_patch14_224"),
        *("vit_so150m_patch16_reg4_gap_256", "vit_medium_patch16_reg1_gap_256"),
    ],
)
def test_published_model_fits_in_both_directions(name):
    with torch.device("meta"):
        reference = timm.create_model(name, depth=2)
        facts, state = read_facts(reference), reference.state_dict()
        config = read_config(state, facts)
        model, exported = model_config.build_model(config), VisionTransformer(**make_arguments(config))
        tensors = to_vitkit(state, reference.patch_embed.grid_size)
        exported_tensors = from_vitkit(model.state_dict(), config)
    assert compare_shapes(get_shapes(model.state_dict()), get_shapes(tensors)) == []
    assert compare_shapes(get_shapes(exported.state_dict()), get_shapes(exported_tensors)) == []
    assert read_facts(exported) == facts


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="needs the trained weights in ../shared/weights")
def test_trained_weights_reproduce_every_block_of_the_reference():
    reference = {name: torch.from_numpy(array) for name, array in np.load(WEIGHTS / "vits14_reference.npz").items()}
    state = load_file(WEIGHTS / "vits14_real.safetensors")
    model = model_config.build_model(read_config(state, Facts(6, (518, 518), antialias=False))).eval()
    load(model, to_vitkit(state, (37, 37)))
    outputs: list[Tensor] = []

    def record(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        outputs.append(output)

    for block in model.encoder.blocks:
        block.register_forward_hook(record)
    with torch.inference_mode():
        normed = model.features(reference["x"])
    assert len(outputs) == len(reference["blocks"]) == 12
    for output, expected in zip(outputs, reference["blocks"], strict=True):
        assert compute_error(output, expected) < 1e-4
    assert compute_error(normed, reference["ln"]) < 1e-5


def compute_error(output: Tensor, expected: Tensor) -> float:
    return ((output - expected).norm() / expected.norm()).item()
