"""Hugging Face's CLIP and SigLIP with random parameters, in and out."""

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitkit.bundle import model_config, weights
from vitkit.convert.hf import clip_config, clip_tensors
from vitkit.models import CLIP, ViT

transformers = pytest.importorskip("transformers")
open_clip = pytest.importorskip("open_clip")

NONE: Mapping[str, Any] = MappingProxyType({})
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {**SIZES, "image_size": 24, "patch_size": 8}
TEXT = {**SIZES, "vocab_size": 20, "max_position_embeddings": 6, "eos_token_id": 19}


def make_config(sigmoid: bool, text: Mapping[str, Any] = NONE, vision: Mapping[str, Any] = NONE) -> Any:
    kind = transformers.SiglipConfig if sigmoid else transformers.CLIPConfig
    projection = {} if sigmoid else {"projection_dim": 12}
    return kind(text_config={**TEXT, **text}, vision_config={**VISION, **vision}, **projection)


MODELS = {
    "CLIP": make_config(False, {"hidden_size": 16}),
    "CLIP of exact GELU": make_config(False, {"hidden_act": "gelu", "eos_token_id": 7}, {"layer_norm_eps": 0.1}),
    "CLIP whose texts end with the first id": make_config(False, {"eos_token_id": 0, "bos_token_id": 1}),
    "CLIP of before 4.31": make_config(False, {"eos_token_id": 2}),
    "SigLIP": make_config(True),
    "SigLIP of exact GELU": make_config(True, {"layer_norm_eps": 0.1}, {"hidden_act": "gelu"}),
}


def make_reference(config: Any) -> Any:
    kind = transformers.SiglipModel if config.model_type == "siglip" else transformers.CLIPModel
    return kind(copy.deepcopy(config))


def get_hf_config(model: Any) -> dict[str, Any]:
    return {**model.config.to_dict(), "architectures": [type(model).__name__]}


def import_model(state: dict[str, Tensor], hf_config: dict[str, Any], *, image_only: bool = False) -> Any:
    model = model_config.build_model(clip_config.read_config(hf_config, image_only=image_only)).double().eval()
    weights.load(model, clip_tensors.to_vitkit(state, hf_config, image_only=image_only))
    return model


def draw_ids(config: Any) -> Tensor:
    """Return texts of three lengths, each with its end-of-text id."""
    end = config.text_config.eos_token_id
    ids = torch.randint(8, 19, (3, 6))
    for row, length in enumerate((2, 4, 6)):
        ids[row, length - 1], ids[row, length:] = 19 if end == 2 else end, 3
    return ids


def assert_equal_outputs(model: CLIP, reference: Any, images: Tensor, ids: Tensor, tolerance: float) -> None:
    ours, expected = model(images, ids), reference(pixel_values=images, input_ids=ids, return_loss=True)
    assert_close(ours.image, expected.image_embeds, rtol=0, atol=tolerance)
    assert_close(ours.text, expected.text_embeds, rtol=0, atol=tolerance)
    if model.bias is None:
        loss = open_clip.ClipLoss()(ours.image, ours.text, ours.scale)
    else:
        loss = open_clip.loss.SigLipLoss()(ours.image, ours.text, ours.scale, ours.bias)
    assert_close(loss, expected.loss, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_and_loss_are_equal_in_both_directions(name, randomise):
    reference = randomise(make_reference(MODELS[name]))
    images, ids = torch.randn(3, 3, 24, 24, dtype=torch.float64), draw_ids(MODELS[name])
    hf_config = get_hf_config(reference)
    model = import_model(reference.state_dict(), hf_config)
    assert_equal_outputs(model, reference, images, ids, 1e-9)
    config = clip_config.read_config(hf_config)
    hf_config = clip_config.write_config(config)
    kind = getattr(transformers, hf_config["architectures"][0])
    exported = kind(reference.config_class.from_dict(hf_config)).double().eval()
    exported.load_state_dict(clip_tensors.from_vitkit(model.state_dict(), config), strict=True)
    assert_equal_outputs(model, exported, images, ids, 1e-9)
    assert_equal_outputs(model.float(), reference.float(), images.float(), ids, 1e-5)


@pytest.mark.parametrize("name", ["CLIP", "SigLIP"])
def test_bias_of_patches_is_exported(name, randomise):
    config = clip_config.read_config(get_hf_config(make_reference(MODELS[name])))
    model = randomise(model_config.build_model(config))
    assert model.get_parameter("image.embed.patches.bias").abs().min() > 0
    exported = make_reference(MODELS[name]).double().eval()
    exported.load_state_dict(clip_tensors.from_vitkit(model.state_dict(), config), strict=True)
    assert_equal_outputs(model, exported, torch.randn(3, 3, 24, 24, dtype=torch.float64), draw_ids(MODELS[name]), 1e-9)


@pytest.mark.parametrize("name", ["CLIPVisionModel", "CLIPVisionModelWithProjection", "SiglipVisionModel"])
def test_image_tower_is_a_vit_with_every_prefix_of_names(name, randomise):
    kind = getattr(transformers, name)
    reference = randomise(kind(kind.config_class(**VISION, **({"projection_dim": 12} if "CLIP" in name else {}))))
    images, state = torch.randn(2, 3, 24, 24, dtype=torch.float64), reference.state_dict()
    outputs = reference(images)
    expected = outputs.image_embeds if "Projection" in name else outputs.pooler_output
    flat = {name.removeprefix("vision_model."): tensor for name, tensor in state.items()}
    old = {name if name.startswith("visual_") else f"vision_model.{name}": tensor for name, tensor in flat.items()}
    old["vision_model.embeddings.position_ids"] = torch.arange(10)[None]
    for tensors in (state, flat, old):
        assert clip_tensors.is_image_tower(tensors)
        model = import_model(tensors, get_hf_config(reference))
        assert isinstance(model, ViT)
        assert_close(model(images), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["CLIP", "SigLIP"])
def test_image_tower_of_a_model_with_both_towers(name, randomise):
    reference = randomise(make_reference(MODELS[name]))
    images = torch.randn(2, 3, 24, 24, dtype=torch.float64)
    model = import_model(reference.state_dict(), get_hf_config(reference), image_only=True)
    assert not clip_tensors.is_image_tower(reference.state_dict())
    assert_close(model(images), reference.get_image_features(images).pooler_output, rtol=0, atol=1e-9)


def test_config_error_lists_every_problem_of_both_towers():
    hf_config = get_hf_config(make_reference(MODELS["CLIP"]))
    hf_config["vision_config"] |= {"hidden_act": "mish", "image_size": [24, 16]}
    hf_config["text_config"] |= {"num_attention_heads": 5, "layer_norm_eps": "a"}
    with pytest.raises(ValueError) as raised:
        clip_config.read_config({**hf_config, "projection_dim": 0})
    for rule in ("hidden_act", "square", "layer_norm_eps must be a number", "projection_dim"):
        assert rule in str(raised.value)
    for changes, rule in (
        ({"model_type": "siglip2"}, "model_type must be one of clip"),
        ({"architectures": ["CLIPTextModel"]}, "architectures must be one of CLIPModel, CLIPVisionModel"),
        ({"text_config": [1]}, "text_config must hold names and values"),
    ):
        with pytest.raises(ValueError, match=rule):
            clip_config.read_config({**hf_config, **changes})
    with pytest.raises(ValueError, match="vision_use_head must be true"):
        clip_config.read_config(get_hf_config(make_reference(make_config(True, {}, {"vision_use_head": False}))))


def test_error_lists_unknown_missing_and_misshapen_tensors():
    reference = make_reference(MODELS["SigLIP"])
    state = reference.state_dict()
    state["vision_model.embeddings.position_embedding.weight"] = torch.zeros(8, 32)
    del state["text_model.encoder.layers.1.mlp.fc1.bias"], state["logit_bias"]
    state["extra"] = torch.zeros(3)
    with pytest.raises(ValueError) as raised:
        import_model(state, get_hf_config(reference))
    for line in ("+ extra", "- text.encoder.blocks.1.mlp.f.up.bias", "- bias", "- image.embed.table.weight"):
        assert line in str(raised.value)


def change_config(name: str, tower: str = "", **args: Any) -> dict[str, Any]:
    config = copy.deepcopy(clip_config.read_config(get_hf_config(make_reference(MODELS[name]))))
    (config["init_args"][tower]["init_args"] if tower else config["init_args"]).update(args)
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (change_config("CLIP", bias=-10.0), "bias must be left out"),
        (change_config("CLIP", "image", image_size=[24, 16]), "must be square"),
        (change_config("CLIP", "image", prefix=2, pre_norm="torch.nn.Identity"), "prefix must be 1.*pre_norm must be"),
        (change_config("CLIP", "text", pool={"class_path": "vitkit.nn.EndOfText", "init_args": {"end": 2}}), "not 2"),
        (change_config("SigLIP", "image", outputs=4, prefix=1), "prefix must be 0.*outputs must be 0"),
        (change_config("SigLIP", "text", table="vitkit.nn.Sinusoidal"), "table must be Learned"),
    ],
)
def test_config_without_a_class_in_transformers_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        clip_config.write_config(config)


def test_head_with_a_bias_is_refused():
    config = change_config("CLIP", "text", head="torch.nn.Linear")
    model = model_config.build_model(config)
    torch.nn.init.ones_(model.get_parameter("text.head.bias"))
    with pytest.raises(ValueError, match="text.head.bias must be 0 for transformers' CLIP"):
        clip_tensors.from_vitkit(model.state_dict(), config)


def test_defaults_are_those_of_transformers():
    for family, kind in ((clip_config.CLIP_FAMILY, "CLIP"), (clip_config.SIGLIP_FAMILY, "Siglip")):
        for tower, values in (("Vision", family.vision), ("Text", family.text)):
            defaults = getattr(transformers, f"{kind}{tower}Config")().to_dict()
            assert {name: defaults[name] for name in values} == values
