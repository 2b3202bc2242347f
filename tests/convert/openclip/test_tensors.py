"""OpenCLIP's image towers with random parameters, in and out."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bundle import model_config, weights
from vitkit.convert.openclip import config as openclip_config
from vitkit.convert.openclip import tensors as openclip_tensors

open_clip = pytest.importorskip("open_clip")

VISION = {"layers": 2, "width": 32, "head_width": 8, "patch_size": 8, "image_size": [24, 40], "mlp_ratio": 1.5}
TEXT = {"context_length": 4, "vocab_size": 8, "width": 8, "heads": 2, "layers": 1}
TOWERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "QuickGELU": {"quick_gelu": True},
    "of one size": {"patch_size": 8, "image_size": 32, "pos_embed_type": "sin_cos_2d"},
    "oblong patches": {"patch_size": [8, 4]},
    "LayerScale": {"ls_init_value": 0.1},
    "another epsilon and GELU": {"norm_kwargs": {"eps": 0.1}, "act_kwargs": {"approximate": "tanh"}},
    "CLIPA": {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
    "the mean of what is normed": {"pool_type": "avg"},
    "the norm of CLS alone": {"final_ln_after_pool": True},
    "patch dropout": {"patch_dropout": 0.5},
}


def make_model_cfg(options: dict[str, Any]) -> dict[str, Any]:
    vision = {name: value for name, value in options.items() if name != "quick_gelu"}
    return {"embed_dim": 12, "vision_cfg": {**VISION, **vision}, "quick_gelu": options.get("quick_gelu", False)}


def build_tower(model_cfg: dict[str, Any]) -> nn.Module:
    return open_clip.model._build_vision_tower(model_cfg["embed_dim"], model_cfg["vision_cfg"], model_cfg["quick_gelu"])


def import_tower(state: dict[str, Tensor], model_cfg: dict[str, Any]) -> nn.Module:
    model = model_config.build_model(openclip_config.read_config(state, model_cfg)).double().eval()
    weights.load(model, openclip_tensors.to_vitkit(state, model_cfg))
    return model


def export_tower(state: dict[str, Tensor], config: dict[str, Any]) -> nn.Module:
    tower = build_tower(openclip_config.write_config(config)).double().eval()
    tensors = openclip_tensors.from_vitkit(state, config)
    assert all(name.startswith("visual.") for name in tensors)
    tower.load_state_dict({name.removeprefix("visual."): tensor for name, tensor in tensors.items()}, strict=True)
    return tower


def draw_images(model_cfg: dict[str, Any]) -> Tensor:
    size = model_cfg["vision_cfg"]["image_size"]
    return torch.randn(2, 3, *(size if isinstance(size, list) else (size, size)), dtype=torch.float64)


@pytest.mark.parametrize("name", TOWERS)
def test_embeddings_are_equal_in_both_directions(name, randomise):
    model_cfg = make_model_cfg(TOWERS[name])
    reference = randomise(build_tower(model_cfg))
    model, images = import_tower(reference.state_dict(), model_cfg), draw_images(model_cfg)
    expected = reference(images)
    assert_close(model(images), expected, rtol=0, atol=1e-9)
    config = openclip_config.read_config(reference.state_dict(), model_cfg)
    assert_close(export_tower(model.state_dict(), config)(images), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("custom", [False, True])
def test_image_tower_of_a_model_with_both_towers(custom, randomise):
    model_cfg = make_model_cfg({})
    kind = open_clip.model.CustomTextCLIP if custom else open_clip.model.CLIP
    whole = randomise(kind(model_cfg["embed_dim"], model_cfg["vision_cfg"], TEXT))
    images = draw_images(model_cfg)
    expected = whole.encode_image(images)
    assert_close(import_tower(whole.state_dict(), model_cfg)(images), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "timm",
    [{"timm_pool": "token"}, {"timm_pool": "avg", "timm_proj_bias": True}, {"timm_pool": "", "timm_proj": "none"}],
)
def test_embeddings_of_a_timm_tower_are_equal(timm, randomise):
    model_cfg = make_model_cfg({"timm_model_name": "test_vit", "image_size": 160, **timm})
    reference, images = randomise(build_tower(model_cfg)), torch.randn(1, 3, 160, 160, dtype=torch.float64)
    model, expected = import_tower(reference.state_dict(), model_cfg), reference(images)
    expected = expected[:, 0] if expected.ndim == 3 else expected  # without a pool it gives all tokens
    assert_close(model(images), expected, rtol=0, atol=1e-9)


def test_siglip_tower_fits():
    model_cfg = open_clip.get_model_config("ViT-B-16-SigLIP")
    with torch.device("meta"):
        state = build_tower({"quick_gelu": False, **model_cfg}).state_dict()
        model = model_config.build_model(openclip_config.read_config(state, model_cfg))
    converted = openclip_tensors.to_vitkit(state, model_cfg)
    assert weights.compare_shapes(weights.get_shapes(model.state_dict()), weights.get_shapes(converted)) == []


REFUSED = {
    "RN50": "not a ResNet's",
    "coca_ViT-B-32": "attentional_pool must be left out",
    "ViTamin-S": "HybridEmbed",
}


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-L-14-CLIPA", "ViT-L-14-quickgelu", *REFUSED])
def test_published_towers_fit_or_are_refused(name):
    model_cfg = {"quick_gelu": False, **open_clip.get_model_config(name)}
    model_cfg["vision_cfg"] = {**model_cfg["vision_cfg"], "layers": [1, 1, 1, 1] if name == "RN50" else 1}
    with torch.device("meta"):
        state = build_tower(model_cfg).state_dict()
        if name in REFUSED:
            with pytest.raises(ValueError, match=REFUSED[name]):
                openclip_config.read_config(state, model_cfg)
            return
        model = model_config.build_model(openclip_config.read_config(state, model_cfg))
    converted = weights.get_shapes(openclip_tensors.to_vitkit(state, model_cfg))
    assert weights.compare_shapes(weights.get_shapes(model.state_dict()), converted) == []


def test_config_error_lists_every_problem():
    options = {"attentional_pool": True, "pool_type": "none", "qk_norm": True, "norm_kwargs": {"bias": False}}
    model_cfg = make_model_cfg({**options, "layers": [3, 4], "head_width": 7, "image_size": 25, "act_kwargs": {"x": 1}})
    with pytest.raises(ValueError) as raised:
        openclip_config.read_config({}, model_cfg)
    for rule in (
        "attentional_pool",
        "pool_type",
        "qk_norm",
        "norm_kwargs",
        "layers",
        "head_width",
        "image_size",
        "act",
    ):
        assert rule in str(raised.value)
    with pytest.raises(ValueError, match="blocks must be the default ones, got custom"):
        openclip_config.read_config({}, make_model_cfg({"block_type": "custom"}))


def test_error_lists_unknown_missing_and_misshapen_tensors(randomise):
    model_cfg = make_model_cfg({})
    state = randomise(build_tower(model_cfg)).state_dict()
    state["positional_embedding"] = state["positional_embedding"][:-1]
    del state["transformer.resblocks.1.attn.in_proj_bias"], state["proj"]
    state["extra"] = torch.zeros(3)
    with pytest.raises(ValueError) as raised:
        import_tower(state, model_cfg)
    for line in ("+ extra", "- encoder.blocks.1.attn.f.qkv.bias", "- head.weight", "- embed.table.weight"):
        assert line in str(raised.value)
    assert "+ positional_embedding: file (15, 32)" in str(raised.value)


def vit(encoder: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    trunk = {"class_path": "vitkit.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 4, **(encoder or {})}}
    sizes = {"image_size": [24, 40], "patch_size": [8, 8], "outputs": 5}
    return {"class_path": "vitkit.ViT", "init_args": {"encoder": trunk, **sizes, **model}}


NORM_IN_POOL = {"class_path": "vitkit.nn.Mean", "init_args": {"norm": "vitkit.nn.LayerNorm"}}


@pytest.mark.parametrize(
    "config",
    [vit(outputs=0), vit(table="vitkit.nn.Sinusoidal"), vit({"norm": "torch.nn.LayerNorm"}, pool="vitkit.nn.Mean")],
)
def test_exported_embeddings_are_equal(config, randomise):
    model, images = randomise(model_config.build_model(config)), torch.randn(2, 3, 24, 40, dtype=torch.float64)
    if config["init_args"]["outputs"]:
        nn.init.zeros_(model.get_parameter("head.bias"))
    embeddings = export_tower(model.state_dict(), config)(images)
    assert_close(embeddings, model(images), rtol=0, atol=1e-9)


def test_head_with_a_bias_is_refused():
    model = model_config.build_model(vit())
    nn.init.ones_(model.get_parameter("head.bias"))
    with pytest.raises(ValueError, match="head.bias must be 0 for OpenCLIP"):
        openclip_tensors.from_vitkit(model.state_dict(), vit())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (vit(prefix=2), "prefix must be 1"),
        (vit(channels=1), "channels must be 3"),
        (vit({"final_norm": False}), "there must be a norm after the blocks"),
        (
            vit(pool={"class_path": "vitkit.nn.Mean", "init_args": {"norm": "vitkit.nn.LayerNorm"}}),
            "must be a norm after",
        ),
        (vit(pre_norm={"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": 0.1}}), "one epsilon"),
        (vit(pool={"class_path": "vitkit.nn.Attend", "init_args": {"heads": 4}}), "pool must be First or Mean"),
        (vit({"mlp": "vitkit.nn.SwiGLU"}), "mlp must be MLP"),
        (vit({"position": {"class_path": "vitkit.nn.Rotary"}}, prefix=2), "position must.*prefix must"),
        ({"class_path": "vitkit.nn.MLP", "init_args": {"dim": 3}}, "config must be of a ViT"),
    ],
)
def test_model_that_no_tower_can_hold_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        openclip_config.write_config(config)


def test_defaults_are_those_of_open_clip():
    defaults = asdict(open_clip.CLIPVisionCfg())
    assert {name: defaults[name] for name in openclip_config.VISION} == openclip_config.VISION
    defaults = asdict(open_clip.transform.PreprocessCfg())
    assert {name: defaults[name] for name in openclip_config.PREPROCESS} == openclip_config.PREPROCESS


@pytest.mark.parametrize("size", [32, [24, 40]])
def test_pixels_equal_open_clip(size):
    cfg = {"size": size, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "interpolation": "bicubic", "mode": "RGB"}
    preprocess, notes = openclip_config.read_preprocess_cfg(cfg)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8))
    expected = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**cfg), is_train=False)(picture)
    assert notes == ()
    # Sizes are rounded down here, and to the nearest there.
    assert_close(preprocess(picture), expected, rtol=0, atol=0.02 / 0.5 if size == 32 else 2.0)


def test_stretching_is_noted_and_padding_refused():
    square = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8))
    cfg = {"size": 32, "resize_mode": "squash"}
    preprocess, (note,) = openclip_config.read_preprocess_cfg(cfg)
    assert "stretches" in note
    expected = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**cfg), is_train=False)(square)
    assert_close(preprocess(square), expected, rtol=0, atol=0.02)
    with pytest.raises(ValueError, match="resize_mode must be shortest or squash"):
        openclip_config.read_preprocess_cfg({"resize_mode": "longest"})
