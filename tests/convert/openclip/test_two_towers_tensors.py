"""Both towers of OpenCLIP with random parameters, in and out."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import _create_vision_transformer
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bundle import model_config, weights
from vitkit.convert.openclip import text_tower, two_towers
from vitkit.models import CLIP
from vitkit.models.clip import Pair

open_clip = pytest.importorskip("open_clip")

NONE: Mapping[str, Any] = MappingProxyType({})
VISION = {"layers": 2, "width": 32, "head_width": 8, "patch_size": 8, "image_size": [16, 24], "mlp_ratio": 1.5}
TEXT = {"context_length": 6, "vocab_size": 20, "width": 24, "heads": 2, "layers": 2}
TRUNK = {"timm_model_name": "vit_tiny_siglip", "timm_pool": "map", "timm_proj": "none", "image_size": [16, 24]}
LAST = {"pool_type": "last", "no_causal_mask": True}
SIGLIP = {**LAST, "proj_bias": True, "norm_kwargs": {"eps": 1e-6}}


@timm.models.register_model
def vit_tiny_siglip(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    sizes = {"img_size": (16, 24), "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    sizes |= {"class_token": False, "global_pool": "map"}
    return _create_vision_transformer("vit_tiny_siglip", pretrained=pretrained, **{**sizes, **kwargs})


def model_cfg(vision: Mapping[str, Any] = NONE, text: Mapping[str, Any] = NONE, **whole: Any) -> dict[str, Any]:
    inner = vision if "timm_model_name" in vision else {**VISION, **vision}
    return {"embed_dim": 12, "vision_cfg": inner, "text_cfg": {**TEXT, **text}, **whole}


MODELS: dict[str, dict[str, Any]] = {
    "CLIP": model_cfg(),
    "QuickGELU": model_cfg(quick_gelu=True),
    "an end of text that is not the greatest id": model_cfg(text={"pool_type": "eos", "eos_id": 7}),
    "LayerScale, GELU and epsilon": model_cfg(
        text={"ls_init_value": 0.1, "act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 0.1}}
    ),
    "a projection with a bias": model_cfg(text={"proj_bias": True}),
    "a text without projection": model_cfg(text={"width": 12, "proj_type": "none"}),
    "CLIPA": model_cfg({"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}, LAST),
    "CLIP with a bias": model_cfg(init_logit_bias=-10),
    "SigLIP": model_cfg(TRUNK, {**SIGLIP, "width": 32}, embed_dim=32, init_logit_bias=-10, custom_text=True),
    "SigLIP with a projection": model_cfg(
        {**TRUNK, "timm_proj": "linear"}, SIGLIP, init_logit_bias=-10, custom_text=True
    ),
    "a trunk beside QuickGELU": model_cfg({**TRUNK, "timm_proj": "linear"}, quick_gelu=True, custom_text=True),
}


def theirs_of(told: dict[str, Any]) -> nn.Module:
    told = copy.deepcopy(told)
    kind = open_clip.CustomTextCLIP if told.pop("custom_text", False) else open_clip.CLIP
    return kind(**told)


def texts(told: dict[str, Any]) -> Tensor:
    """Of three lengths, and each with the id that ends it."""
    text = {**text_tower.TEXT, **told["text_cfg"]}
    end = {"argmax": text["vocab_size"] - 1, "eos": text["eos_id"], "last": 1}[text["pool_type"]]
    ids = torch.randint(8, text["vocab_size"] - 1, (3, 6))
    for row, length in enumerate((2, 4, 6)):
        ids[row, length - 1], ids[row, length:] = end, 0
    return ids


def imported(state: dict[str, Tensor], told: dict[str, Any]) -> tuple[CLIP, dict[str, Any]]:
    config = two_towers.read_config(state, told)
    model = model_config.build_model(config).double().eval()
    weights.load(model, two_towers.to_vitkit(state, told))
    assert isinstance(model, CLIP)
    return model, config


def loss(pair: Pair, sigmoid: bool) -> Tensor:
    bias = {"logit_bias": pair.bias} if sigmoid else {}
    kind = open_clip.loss.SigLipLoss() if sigmoid else open_clip.ClipLoss()
    return kind(pair.image, pair.text, pair.scale, **bias)


def same(ours: Pair, theirs: Any, told: dict[str, Any], tolerance: float) -> None:
    sigmoid = "init_logit_bias" in told
    image, text, scale, *bias = theirs
    other = Pair(image, text, scale, bias[0] if bias else torch.zeros_like(scale))
    for name in ("image", "text"):
        assert_close(getattr(ours, name), getattr(other, name), rtol=0, atol=tolerance)
    for name in ("scale", "bias"):
        assert_close(getattr(ours, name), getattr(other, name), rtol=tolerance, atol=tolerance)
    assert_close(loss(ours, sigmoid), loss(other, sigmoid), rtol=0, atol=tolerance)


@pytest.mark.parametrize("which", MODELS)
def test_both_towers_come_in_and_go_out_with_the_same_embeddings_and_loss(which, randomise):
    told = MODELS[which]
    reference = randomise(theirs_of(told))
    reference.logit_scale.data.fill_(1.7)
    images, ids = torch.randn(3, 3, 16, 24, dtype=torch.float64), texts(told)
    expected = reference(images, ids)
    model, config = imported(reference.state_dict(), told)
    same(model(images, ids), expected, told, 1e-9)
    again = theirs_of(two_towers.write_config(config)).double().eval()
    again.load_state_dict(two_towers.from_vitkit(model.state_dict(), config), strict=True)
    same(model(images, ids), again(images, ids), told, 1e-9)
    same(model.float()(images.float(), ids), reference.float()(images.float(), ids), told, 1e-5)


def test_both_classes_of_one_model_come_in_alike(randomise):
    told = MODELS["CLIP"]
    reference = randomise(theirs_of(told))
    custom = open_clip.model.convert_to_custom_text_state_dict(reference.state_dict())
    assert "text.token_embedding.weight" in custom
    images, ids = torch.randn(3, 3, 16, 24, dtype=torch.float64), texts(told)
    for state in (reference.state_dict(), custom):
        model, _ = imported(state, told)
        assert_close(model.encode_text(ids), reference.encode_text(ids, normalize=True), rtol=0, atol=1e-9)
        assert_close(model.encode_image(images), reference.encode_image(images, normalize=True), rtol=0, atol=1e-9)


def test_a_scale_above_the_bound_is_kept():
    told = MODELS["CLIP"]
    reference = theirs_of(told)
    reference.logit_scale.data.fill_(4.7)
    model, config = imported(reference.state_dict(), told)
    assert model.log_scale.item() == pytest.approx(4.7)
    assert (model.most, config["init_args"].get("bias")) == (100, None)
    model, _ = imported(theirs_of(MODELS["SigLIP"]).state_dict(), MODELS["SigLIP"])
    assert model.most == 1000


def test_everything_of_both_towers_that_cannot_come_in_is_one_error():
    told = model_cfg({"attentional_pool": True}, {"embed_cls": True, "pool_type": "first", "qk_norm": True, "heads": 5})
    with pytest.raises(ValueError) as raised:
        two_towers.read_config({"text_decoder.ln_final.weight": torch.zeros(1)}, {**told, "multimodal_cfg": {"x": 1}})
    for rule in ("CoCa", "attentional_pool", "embed_cls", "pool_type=first", "qk_norm", "heads must divide"):
        assert rule in str(raised.value)
    for text, said in (
        ({"hf_model_name": "roberta-base"}, "hf_model_name='roberta-base'"),
        ({"no_causal_mask": True}, "pool_type must be last with no_causal_mask"),
        ({"width": 0}, "width must be a whole number above 0"),
        ({"proj_type": "mlp"}, "proj_type must be linear or none"),
        ({"act_kwargs": "tanh"}, "act_kwargs and norm_kwargs must hold names and values, got 'tanh'"),
        ({"norm_kwargs": [1e-6]}, "act_kwargs and norm_kwargs must hold names and values"),
    ):
        with pytest.raises(ValueError, match=said):
            two_towers.read_config({}, model_cfg(text=text))


def test_an_unknown_a_missing_and_a_misshapen_tensor_are_one_error():
    told = MODELS["CLIP"]
    state = theirs_of(told).state_dict()
    state["positional_embedding"] = state["positional_embedding"][:-1]
    del state["transformer.resblocks.1.attn.in_proj_bias"], state["logit_scale"]
    state["extra"] = torch.zeros(3)
    with pytest.raises(ValueError) as raised:
        imported(state, told)
    for line in (
        "+ extra",
        "- text.encoder.blocks.1.attn.f.qkv.bias",
        "- log_scale",
        "! text.embed.table.weight: model (6, 24), file (5, 24)",
    ):
        assert line in str(raised.value)


def changed(which: str, tower: str, **args: Any) -> dict[str, Any]:
    with torch.device("meta"):
        state = theirs_of(MODELS[which]).state_dict()
    config = copy.deepcopy(two_towers.read_config(state, MODELS[which]))
    config["init_args"][tower]["init_args"].update(args)
    return config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (changed("CLIP", "text", table="vitkit.nn.Sinusoidal"), "table must be Learned"),
        (changed("CLIP", "text", head="vitkit.nn.LayerNorm"), "head must be"),
        (changed("CLIP", "image", prefix=2), "prefix must be 1"),
        (changed("SigLIP", "image", image_size=[24, 24]), "knows them by name.*24 x 24"),
        ({"class_path": "vitkit.nn.MLP", "init_args": {"dim": 3}}, "config must be of a CLIP"),
    ],
)
def test_what_open_clip_cannot_hold_is_refused(config, said):
    with pytest.raises(ValueError, match=said):
        two_towers.write_config(config)


def test_one_activation_is_said_of_both_towers():
    config = changed("CLIP", "text")
    config["init_args"]["text"]["init_args"]["encoder"]["init_args"]["mlp"]["init_args"]["act"] = "vitkit.nn.QuickGELU"
    with pytest.raises(ValueError, match="both towers must have QuickGELU"):
        two_towers.write_config(config)


def test_what_a_text_config_does_not_say_is_what_open_clip_takes():
    defaults = asdict(open_clip.CLIPTextCfg())
    assert {name: defaults[name] for name in text_tower.TEXT} == text_tower.TEXT


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-L-14-CLIPA", "ViT-B-16-SigLIP2"])
def test_published_models_fit(name):
    told = open_clip.get_model_config(name)
    vision, text = {**told["vision_cfg"]}, {**told["text_cfg"], "layers": 1}
    if "layers" in vision:
        vision["layers"] = 1
    told = {**told, "vision_cfg": vision, "text_cfg": text}
    with torch.device("meta"):
        state = theirs_of(told).state_dict()
        model = model_config.build_model(two_towers.read_config(state, told))
    converted = weights.shapes_of(two_towers.to_vitkit(state, told))
    assert weights.differences(weights.shapes_of(model.state_dict()), converted) == []
