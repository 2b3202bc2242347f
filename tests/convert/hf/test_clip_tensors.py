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


def config_of(sigmoid: bool, text: Mapping[str, Any] = NONE, vision: Mapping[str, Any] = NONE) -> Any:
    kind = transformers.SiglipConfig if sigmoid else transformers.CLIPConfig
    more = {} if sigmoid else {"projection_dim": 12}
    return kind(text_config={**TEXT, **text}, vision_config={**VISION, **vision}, **more)


MODELS = {
    "CLIP": config_of(False, {"hidden_size": 16}),
    "CLIP of exact GELU": config_of(False, {"hidden_act": "gelu", "eos_token_id": 7}, {"layer_norm_eps": 0.1}),
    "CLIP whose texts end with the first id": config_of(False, {"eos_token_id": 0, "bos_token_id": 1}),
    "CLIP of before 4.31": config_of(False, {"eos_token_id": 2}),
    "SigLIP": config_of(True),
    "SigLIP of exact GELU": config_of(True, {"layer_norm_eps": 0.1}, {"hidden_act": "gelu"}),
}


def theirs_of(config: Any) -> Any:
    kind = transformers.SiglipModel if config.model_type == "siglip" else transformers.CLIPModel
    return kind(copy.deepcopy(config))


def told_of(model: Any) -> dict[str, Any]:
    return {**model.config.to_dict(), "architectures": [type(model).__name__]}


def imported(state: dict[str, Tensor], told: dict[str, Any], *, image_only: bool = False) -> Any:
    model = model_config.build_model(clip_config.read_config(told, image_only=image_only)).double().eval()
    weights.load(model, clip_tensors.to_vitkit(state, told, image_only=image_only))
    return model


def texts(config: Any) -> Tensor:
    """Of three lengths, and each with the id that ends it."""
    end = config.text_config.eos_token_id
    ids = torch.randint(8, 19, (3, 6))
    for row, length in enumerate((2, 4, 6)):
        ids[row, length - 1], ids[row, length:] = 19 if end == 2 else end, 3
    return ids


def same(model: CLIP, theirs: Any, images: Tensor, ids: Tensor, tolerance: float) -> None:
    ours, other = model(images, ids), theirs(pixel_values=images, input_ids=ids, return_loss=True)
    assert_close(ours.image, other.image_embeds, rtol=0, atol=tolerance)
    assert_close(ours.text, other.text_embeds, rtol=0, atol=tolerance)
    if model.bias is None:
        loss = open_clip.ClipLoss()(ours.image, ours.text, ours.scale)
    else:
        loss = open_clip.loss.SigLipLoss()(ours.image, ours.text, ours.scale, ours.bias)
    assert_close(loss, other.loss, rtol=0, atol=tolerance)


@pytest.mark.parametrize("which", MODELS)
def test_both_towers_come_in_and_go_out_with_the_same_embeddings_and_loss(which, randomise):
    config = MODELS[which]
    reference = randomise(theirs_of(config))
    images, ids = torch.randn(3, 3, 24, 24, dtype=torch.float64), texts(config)
    told = told_of(reference)
    model = imported(reference.state_dict(), told)
    same(model, reference, images, ids, 1e-9)
    described = clip_config.read_config(told)
    said = clip_config.write_config(described)
    again = getattr(transformers, said["architectures"][0])(reference.config_class.from_dict(said)).double().eval()
    again.load_state_dict(clip_tensors.from_vitkit(model.state_dict(), described), strict=True)
    same(model, again, images, ids, 1e-9)
    same(model.float(), reference.float(), images.float(), ids, 1e-5)


@pytest.mark.parametrize("which", ["CLIP", "SigLIP"])
def test_a_model_of_ours_whose_patches_have_a_bias_goes_out(which, randomise):
    described = clip_config.read_config(told_of(theirs_of(MODELS[which])))
    model = randomise(model_config.build_model(described))
    assert model.get_parameter("image.embed.patches.bias").abs().min() > 0
    again = theirs_of(MODELS[which]).double().eval()
    again.load_state_dict(clip_tensors.from_vitkit(model.state_dict(), described), strict=True)
    same(model, again, torch.randn(3, 3, 24, 24, dtype=torch.float64), texts(MODELS[which]), 1e-9)


@pytest.mark.parametrize("which", ["CLIPVisionModel", "CLIPVisionModelWithProjection", "SiglipVisionModel"])
def test_an_image_tower_is_a_vit_whatever_stands_in_front_of_its_names(which, randomise):
    kind = getattr(transformers, which)
    reference = randomise(kind(kind.config_class(**VISION, **({"projection_dim": 12} if "CLIP" in which else {}))))
    images, state = torch.randn(2, 3, 24, 24, dtype=torch.float64), reference.state_dict()
    found = reference(images)
    expected = found.image_embeds if "Projection" in which else found.pooler_output
    flat = {name.removeprefix("vision_model."): tensor for name, tensor in state.items()}
    old = {name if name.startswith("visual_") else f"vision_model.{name}": tensor for name, tensor in flat.items()}
    old["vision_model.embeddings.position_ids"] = torch.arange(10)[None]
    for held in (state, flat, old):
        assert clip_tensors.is_image_tower(held)
        model = imported(held, told_of(reference))
        assert isinstance(model, ViT)
        assert_close(model(images), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("which", ["CLIP", "SigLIP"])
def test_of_a_whole_model_the_image_tower_may_be_read(which, randomise):
    reference = randomise(theirs_of(MODELS[which]))
    images = torch.randn(2, 3, 24, 24, dtype=torch.float64)
    model = imported(reference.state_dict(), told_of(reference), image_only=True)
    assert not clip_tensors.is_image_tower(reference.state_dict())
    assert_close(model(images), reference.get_image_features(images).pooler_output, rtol=0, atol=1e-9)


def test_everything_of_both_towers_that_cannot_come_in_is_one_error():
    told = told_of(theirs_of(MODELS["CLIP"]))
    told["vision_config"] |= {"hidden_act": "mish", "image_size": [24, 16]}
    told["text_config"] |= {"num_attention_heads": 5, "layer_norm_eps": "a"}
    with pytest.raises(ValueError) as raised:
        clip_config.read_config({**told, "projection_dim": 0})
    for rule in ("hidden_act", "square", "layer_norm_eps must be a number", "projection_dim"):
        assert rule in str(raised.value)
    for said, rule in (
        ({"model_type": "siglip2"}, "model_type must be one of clip"),
        ({"architectures": ["CLIPTextModel"]}, "architectures must be one of CLIPModel, CLIPVisionModel"),
        ({"text_config": [1]}, "text_config must hold names and values"),
    ):
        with pytest.raises(ValueError, match=rule):
            clip_config.read_config({**told, **said})
    with pytest.raises(ValueError, match="vision_use_head must be true"):
        clip_config.read_config(told_of(theirs_of(config_of(True, {}, {"vision_use_head": False}))))


def test_an_unknown_a_missing_and_a_misshapen_tensor_are_one_error():
    reference = theirs_of(MODELS["SigLIP"])
    state = reference.state_dict()
    state["vision_model.embeddings.position_embedding.weight"] = torch.zeros(8, 32)
    del state["text_model.encoder.layers.1.mlp.fc1.bias"], state["logit_bias"]
    state["extra"] = torch.zeros(3)
    with pytest.raises(ValueError) as raised:
        imported(state, told_of(reference))
    for line in ("+ extra", "- text.encoder.blocks.1.mlp.f.up.bias", "- bias", "- image.embed.table.weight"):
        assert line in str(raised.value)


def changed(which: str, tower: str = "", **args: Any) -> dict[str, Any]:
    config = copy.deepcopy(clip_config.read_config(told_of(theirs_of(MODELS[which]))))
    (config["init_args"][tower]["init_args"] if tower else config["init_args"]).update(args)
    return config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (changed("CLIP", bias=-10.0), "bias must be left out"),
        (changed("CLIP", "image", image_size=[24, 16]), "must be square"),
        (changed("CLIP", "image", prefix=2, pre_norm="torch.nn.Identity"), "prefix must be 1.*pre_norm must be"),
        (changed("CLIP", "text", pool={"class_path": "vitkit.nn.EndOfText", "init_args": {"end": 2}}), "not 2"),
        (changed("SigLIP", "image", outputs=4, prefix=1), "prefix must be 0.*outputs must be 0"),
        (changed("SigLIP", "text", table="vitkit.nn.Sinusoidal"), "table must be Learned"),
    ],
)
def test_what_transformers_cannot_hold_is_refused(config, said):
    with pytest.raises(ValueError, match=said):
        clip_config.write_config(config)


def test_a_head_with_a_bias_stays():
    config = changed("CLIP", "text", head="torch.nn.Linear")
    model = model_config.build_model(config)
    torch.nn.init.ones_(model.get_parameter("text.head.bias"))
    with pytest.raises(ValueError, match="text.head.bias must be 0 for transformers' CLIP"):
        clip_tensors.from_vitkit(model.state_dict(), config)


def test_what_a_config_does_not_say_is_what_transformers_takes():
    for family, kind in ((clip_config.CLIP_FAMILY, "CLIP"), (clip_config.SIGLIP_FAMILY, "Siglip")):
        for tower, values in (("Vision", family.vision), ("Text", family.text)):
            defaults = getattr(transformers, f"{kind}{tower}Config")().to_dict()
            assert {name: defaults[name] for name in values} == values
