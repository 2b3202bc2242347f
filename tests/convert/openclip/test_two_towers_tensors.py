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


def make_model_cfg(vision: Mapping[str, Any] = NONE, text: Mapping[str, Any] = NONE, **options: Any) -> dict[str, Any]:
    inner = vision if "timm_model_name" in vision else {**VISION, **vision}
    return {"embed_dim": 12, "vision_cfg": inner, "text_cfg": {**TEXT, **text}, **options}


MODELS: dict[str, dict[str, Any]] = {
    "CLIP": make_model_cfg(),
    "QuickGELU": make_model_cfg(quick_gelu=True),
    "an end of text that is not the greatest id": make_model_cfg(text={"pool_type": "eos", "eos_id": 7}),
    "LayerScale, GELU and epsilon": make_model_cfg(
        text={"ls_init_value": 0.1, "act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 0.1}}
    ),
    "a projection with a bias": make_model_cfg(text={"proj_bias": True}),
    "a text without projection": make_model_cfg(text={"width": 12, "proj_type": "none"}),
    "CLIPA": make_model_cfg({"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}, LAST),
    "CLIP with a bias": make_model_cfg(init_logit_bias=-10),
    "SigLIP": make_model_cfg(TRUNK, {**SIGLIP, "width": 32}, embed_dim=32, init_logit_bias=-10, custom_text=True),
    "SigLIP with a projection": make_model_cfg(
        {**TRUNK, "timm_proj": "linear"}, SIGLIP, init_logit_bias=-10, custom_text=True
    ),
    "a trunk beside QuickGELU": make_model_cfg({**TRUNK, "timm_proj": "linear"}, quick_gelu=True, custom_text=True),
}


def make_reference(model_cfg: dict[str, Any]) -> nn.Module:
    model_cfg = copy.deepcopy(model_cfg)
    kind = open_clip.CustomTextCLIP if model_cfg.pop("custom_text", False) else open_clip.CLIP
    return kind(**model_cfg)


def draw_ids(model_cfg: dict[str, Any]) -> Tensor:
    """Return texts of three lengths, each with its end-of-text id."""
    text = {**text_tower.TEXT, **model_cfg["text_cfg"]}
    end = {"argmax": text["vocab_size"] - 1, "eos": text["eos_id"], "last": 1}[text["pool_type"]]
    ids = torch.randint(8, text["vocab_size"] - 1, (3, 6))
    for row, length in enumerate((2, 4, 6)):
        ids[row, length - 1], ids[row, length:] = end, 0
    return ids


def import_model(state: dict[str, Tensor], model_cfg: dict[str, Any]) -> tuple[CLIP, dict[str, Any]]:
    config = two_towers.read_config(state, model_cfg)
    model = model_config.build_model(config).double().eval()
    weights.load(model, two_towers.to_vitkit(state, model_cfg))
    assert isinstance(model, CLIP)
    return model, config


def compute_loss(pair: Pair, sigmoid: bool) -> Tensor:
    bias = {"logit_bias": pair.bias} if sigmoid else {}
    kind = open_clip.loss.SigLipLoss() if sigmoid else open_clip.ClipLoss()
    return kind(pair.image, pair.text, pair.scale, **bias)


def assert_equal_pairs(ours: Pair, outputs: Any, model_cfg: dict[str, Any], tolerance: float) -> None:
    sigmoid = "init_logit_bias" in model_cfg
    image, text, scale, *bias = outputs
    expected = Pair(image, text, scale, bias[0] if bias else torch.zeros_like(scale))
    for name in ("image", "text"):
        assert_close(getattr(ours, name), getattr(expected, name), rtol=0, atol=tolerance)
    for name in ("scale", "bias"):
        assert_close(getattr(ours, name), getattr(expected, name), rtol=tolerance, atol=tolerance)
    assert_close(compute_loss(ours, sigmoid), compute_loss(expected, sigmoid), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_and_loss_are_equal_in_both_directions(name, randomise):
    model_cfg = MODELS[name]
    reference = randomise(make_reference(model_cfg))
    reference.logit_scale.data.fill_(1.7)
    images, ids = torch.randn(3, 3, 16, 24, dtype=torch.float64), draw_ids(model_cfg)
    expected = reference(images, ids)
    model, config = import_model(reference.state_dict(), model_cfg)
    assert_equal_pairs(model(images, ids), expected, model_cfg, 1e-9)
    exported = make_reference(two_towers.write_config(config)).double().eval()
    exported.load_state_dict(two_towers.from_vitkit(model.state_dict(), config), strict=True)
    assert_equal_pairs(model(images, ids), exported(images, ids), model_cfg, 1e-9)
    assert_equal_pairs(model.float()(images.float(), ids), reference.float()(images.float(), ids), model_cfg, 1e-5)


def test_clip_and_custom_text_clip_give_equal_embeddings(randomise):
    model_cfg = MODELS["CLIP"]
    reference = randomise(make_reference(model_cfg))
    custom = open_clip.model.convert_to_custom_text_state_dict(reference.state_dict())
    assert "text.token_embedding.weight" in custom
    images, ids = torch.randn(3, 3, 16, 24, dtype=torch.float64), draw_ids(model_cfg)
    for state in (reference.state_dict(), custom):
        model, _ = import_model(state, model_cfg)
        assert_close(model.encode_text(ids), reference.encode_text(ids, normalize=True), rtol=0, atol=1e-9)
        assert_close(model.encode_image(images), reference.encode_image(images, normalize=True), rtol=0, atol=1e-9)


def test_scale_above_its_bound_is_imported():
    model_cfg = MODELS["CLIP"]
    reference = make_reference(model_cfg)
    reference.logit_scale.data.fill_(4.7)
    model, config = import_model(reference.state_dict(), model_cfg)
    assert model.log_scale.item() == pytest.approx(4.7)
    assert (model.most, config["init_args"].get("bias")) == (100, None)
    model, _ = import_model(make_reference(MODELS["SigLIP"]).state_dict(), MODELS["SigLIP"])
    assert model.most == 1000


def test_config_error_lists_every_problem_of_both_towers():
    model_cfg = make_model_cfg(
        {"attentional_pool": True}, {"embed_cls": True, "pool_type": "first", "qk_norm": True, "heads": 5}
    )
    with pytest.raises(ValueError) as raised:
        two_towers.read_config(
            {"text_decoder.ln_final.weight": torch.zeros(1)}, {**model_cfg, "multimodal_cfg": {"x": 1}}
        )
    for rule in ("CoCa", "attentional_pool", "embed_cls", "pool_type=first", "qk_norm", "heads must divide"):
        assert rule in str(raised.value)
    for text, message in (
        ({"hf_model_name": "roberta-base"}, "hf_model_name='roberta-base'"),
        ({"no_causal_mask": True}, "pool_type must be last with no_causal_mask"),
        ({"width": 0}, "width must be a whole number above 0"),
        ({"proj_type": "mlp"}, "proj_type must be linear or none"),
        ({"act_kwargs": "tanh"}, "act_kwargs and norm_kwargs must hold names and values, got 'tanh'"),
        ({"norm_kwargs": [1e-6]}, "act_kwargs and norm_kwargs must hold names and values"),
    ):
        with pytest.raises(ValueError, match=message):
            two_towers.read_config({}, make_model_cfg(text=text))


def test_error_lists_unknown_missing_and_misshapen_tensors():
    model_cfg = MODELS["CLIP"]
    state = make_reference(model_cfg).state_dict()
    state["positional_embedding"] = state["positional_embedding"][:-1]
    del state["transformer.resblocks.1.attn.in_proj_bias"], state["logit_scale"]
    state["extra"] = torch.zeros(3)
    with pytest.raises(ValueError) as raised:
        import_model(state, model_cfg)
    for line in (
        "+ extra",
        "- text.encoder.blocks.1.attn.f.qkv.bias",
        "- log_scale",
        "! text.embed.table.weight: model (6, 24), file (5, 24)",
    ):
        assert line in str(raised.value)


def change_config(name: str, tower: str, **args: Any) -> dict[str, Any]:
    with torch.device("meta"):
        state = make_reference(MODELS[name]).state_dict()
    config = copy.deepcopy(two_towers.read_config(state, MODELS[name]))
    config["init_args"][tower]["init_args"].update(args)
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (change_config("CLIP", "text", table="vitkit.nn.Sinusoidal"), "table must be Learned"),
        (change_config("CLIP", "text", head="vitkit.nn.LayerNorm"), "head must be"),
        (change_config("CLIP", "image", prefix=2), "prefix must be 1"),
        (change_config("SigLIP", "image", image_size=[24, 24]), "refers to it by name.*24 x 24"),
        ({"class_path": "vitkit.nn.MLP", "init_args": {"dim": 3}}, "config must be of a CLIP"),
    ],
)
def test_model_that_open_clip_cannot_hold_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        two_towers.write_config(config)


def test_towers_with_different_activations_are_refused():
    config = change_config("CLIP", "text")
    config["init_args"]["text"]["init_args"]["encoder"]["init_args"]["mlp"]["init_args"]["act"] = "vitkit.nn.QuickGELU"
    with pytest.raises(ValueError, match="both towers must have QuickGELU"):
        two_towers.write_config(config)


def test_defaults_are_those_of_open_clip():
    defaults = asdict(open_clip.CLIPTextCfg())
    assert {name: defaults[name] for name in text_tower.TEXT} == text_tower.TEXT


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-L-14-CLIPA", "ViT-B-16-SigLIP2"])
def test_published_models_fit(name):
    model_cfg = open_clip.get_model_config(name)
    vision, text = {**model_cfg["vision_cfg"]}, {**model_cfg["text_cfg"], "layers": 1}
    if "layers" in vision:
        vision["layers"] = 1
    model_cfg = {**model_cfg, "vision_cfg": vision, "text_cfg": text}
    with torch.device("meta"):
        state = make_reference(model_cfg).state_dict()
        model = model_config.build_model(two_towers.read_config(state, model_cfg))
    converted = weights.get_shapes(two_towers.to_vitkit(state, model_cfg))
    assert weights.compare_shapes(weights.get_shapes(model.state_dict()), converted) == []
