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


def config_of(given: dict[str, Any]) -> dict[str, Any]:
    vision = {name: value for name, value in given.items() if name != "quick_gelu"}
    return {"embed_dim": 12, "vision_cfg": {**VISION, **vision}, "quick_gelu": given.get("quick_gelu", False)}


def built(told: dict[str, Any]) -> nn.Module:
    return open_clip.model._build_vision_tower(told["embed_dim"], told["vision_cfg"], told["quick_gelu"])


def imported(state: dict[str, Tensor], told: dict[str, Any]) -> nn.Module:
    model = model_config.build_model(openclip_config.read_config(state, told)).double().eval()
    weights.load(model, openclip_tensors.to_vitkit(state, told))
    return model


def exported(state: dict[str, Tensor], config: dict[str, Any]) -> nn.Module:
    tower = built(openclip_config.write_config(config)).double().eval()
    held = openclip_tensors.from_vitkit(state, config)
    assert all(name.startswith("visual.") for name in held)
    tower.load_state_dict({name.removeprefix("visual."): tensor for name, tensor in held.items()}, strict=True)
    return tower


def images(told: dict[str, Any]) -> Tensor:
    size = told["vision_cfg"]["image_size"]
    return torch.randn(2, 3, *(size if isinstance(size, list) else (size, size)), dtype=torch.float64)


@pytest.mark.parametrize("which", TOWERS)
def test_a_tower_comes_in_and_goes_out_with_the_same_embeddings(which, randomise):
    told = config_of(TOWERS[which])
    reference = randomise(built(told))
    model, pictures = imported(reference.state_dict(), told), images(told)
    expected = reference(pictures)
    assert_close(model(pictures), expected, rtol=0, atol=1e-9)
    config = openclip_config.read_config(reference.state_dict(), told)
    assert_close(exported(model.state_dict(), config)(pictures), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("custom", [False, True])
def test_of_a_whole_model_the_image_tower_is_read(custom, randomise):
    told = config_of({})
    kind = open_clip.model.CustomTextCLIP if custom else open_clip.model.CLIP
    whole = randomise(kind(told["embed_dim"], told["vision_cfg"], TEXT))
    pictures = images(told)
    expected = whole.encode_image(pictures)
    assert_close(imported(whole.state_dict(), told)(pictures), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "timm",
    [{"timm_pool": "token"}, {"timm_pool": "avg", "timm_proj_bias": True}, {"timm_pool": "", "timm_proj": "none"}],
)
def test_a_tower_made_of_timm_gives_the_same_embeddings(timm, randomise):
    told = config_of({"timm_model_name": "test_vit", "image_size": 160, **timm})
    reference, pictures = randomise(built(told)), torch.randn(1, 3, 160, 160, dtype=torch.float64)
    model, expected = imported(reference.state_dict(), told), reference(pictures)
    expected = expected[:, 0] if expected.ndim == 3 else expected  # without a pool it gives all tokens
    assert_close(model(pictures), expected, rtol=0, atol=1e-9)


def test_a_tower_of_siglip_fits():
    told = open_clip.get_model_config("ViT-B-16-SigLIP")
    with torch.device("meta"):
        state = built({"quick_gelu": False, **told}).state_dict()
        model = model_config.build_model(openclip_config.read_config(state, told))
    converted = openclip_tensors.to_vitkit(state, told)
    assert weights.differences(weights.shapes_of(model.state_dict()), weights.shapes_of(converted)) == []


REFUSED = {
    "RN50": "not a ResNet's",
    "coca_ViT-B-32": "attentional_pool must be left out",
    "ViTamin-S": "HybridEmbed",
}


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-L-14-CLIPA", "ViT-L-14-quickgelu", *REFUSED])
def test_the_towers_of_open_clip_fit_or_are_refused_with_a_reason(name):
    told = {"quick_gelu": False, **open_clip.get_model_config(name)}
    told["vision_cfg"] = {**told["vision_cfg"], "layers": [1, 1, 1, 1] if name == "RN50" else 1}
    with torch.device("meta"):
        state = built(told).state_dict()
        if name in REFUSED:
            with pytest.raises(ValueError, match=REFUSED[name]):
                openclip_config.read_config(state, told)
            return
        model = model_config.build_model(openclip_config.read_config(state, told))
    converted = weights.shapes_of(openclip_tensors.to_vitkit(state, told))
    assert weights.differences(weights.shapes_of(model.state_dict()), converted) == []


def test_everything_that_cannot_come_in_is_one_error():
    given = {"attentional_pool": True, "pool_type": "none", "qk_norm": True, "norm_kwargs": {"bias": False}}
    told = config_of({**given, "layers": [3, 4], "head_width": 7, "image_size": 25, "act_kwargs": {"x": 1}})
    with pytest.raises(ValueError) as raised:
        openclip_config.read_config({}, told)
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
        openclip_config.read_config({}, config_of({"block_type": "custom"}))


def test_an_unknown_a_missing_and_a_misshapen_tensor_are_one_error(randomise):
    told = config_of({})
    state = randomise(built(told)).state_dict()
    state["positional_embedding"] = state["positional_embedding"][:-1]
    del state["transformer.resblocks.1.attn.in_proj_bias"], state["proj"]
    state["extra"] = torch.zeros(3)
    with pytest.raises(ValueError) as raised:
        imported(state, told)
    for line in ("+ extra", "- encoder.blocks.1.attn.f.qkv.bias", "- head.weight", "- embed.table.weight"):
        assert line in str(raised.value)
    assert "+ positional_embedding: file (15, 32)" in str(raised.value)


def vit(encoder: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    own = {"class_path": "vitkit.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 4, **(encoder or {})}}
    sizes = {"image_size": [24, 40], "patch_size": [8, 8], "outputs": 5}
    return {"class_path": "vitkit.ViT", "init_args": {"encoder": own, **sizes, **model}}


NORMED = {"class_path": "vitkit.nn.Mean", "init_args": {"norm": "vitkit.nn.LayerNorm"}}


@pytest.mark.parametrize(
    "config",
    [vit(outputs=0), vit(table="vitkit.nn.Sinusoidal"), vit({"norm": "torch.nn.LayerNorm"}, pool="vitkit.nn.Mean")],
)
def test_a_model_of_ours_goes_out(config, randomise):
    model, pictures = randomise(model_config.build_model(config)), torch.randn(2, 3, 24, 40, dtype=torch.float64)
    if config["init_args"]["outputs"]:
        nn.init.zeros_(model.get_parameter("head.bias"))
    found = exported(model.state_dict(), config)(pictures)
    assert_close(found, model(pictures), rtol=0, atol=1e-9)


def test_a_head_with_a_bias_stays():
    model = model_config.build_model(vit())
    nn.init.ones_(model.get_parameter("head.bias"))
    with pytest.raises(ValueError, match="head.bias must be 0 for OpenCLIP"):
        openclip_tensors.from_vitkit(model.state_dict(), vit())


@pytest.mark.parametrize(
    ("config", "said"),
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
def test_what_no_tower_can_hold_is_refused(config, said):
    with pytest.raises(ValueError, match=said):
        openclip_config.write_config(config)


def test_what_a_config_does_not_say_is_what_open_clip_takes():
    defaults = asdict(open_clip.CLIPVisionCfg())
    assert {name: defaults[name] for name in openclip_config.VISION} == openclip_config.VISION
    pictures = asdict(open_clip.transform.PreprocessCfg())
    assert {name: pictures[name] for name in openclip_config.PREPROCESS} == openclip_config.PREPROCESS


@pytest.mark.parametrize("size", [32, [24, 40]])
def test_pictures_are_read_as_open_clip_does(size):
    cfg = {"size": size, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "interpolation": "bicubic", "mode": "RGB"}
    preprocess, notes = openclip_config.read_preprocess_cfg(cfg)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8))
    theirs = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**cfg), is_train=False)(picture)
    assert notes == ()
    # Sizes are rounded down here, and to the nearest there.
    assert_close(preprocess(picture), theirs, rtol=0, atol=0.02 / 0.5 if size == 32 else 2.0)


def test_stretched_pictures_are_said_and_padded_ones_refused():
    square = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8))
    cfg = {"size": 32, "resize_mode": "squash"}
    preprocess, (note,) = openclip_config.read_preprocess_cfg(cfg)
    assert "stretches" in note
    theirs = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**cfg), is_train=False)(square)
    assert_close(preprocess(square), theirs, rtol=0, atol=0.02)
    with pytest.raises(ValueError, match="resize_mode must be shortest or squash"):
        openclip_config.read_preprocess_cfg({"resize_mode": "longest"})
