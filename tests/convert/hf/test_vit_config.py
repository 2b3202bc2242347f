"""Configs of ViT, DeiT, ViTMAE and DINOv2: read, written, and refused with every problem."""

from typing import Any

import pytest

from vitkit.convert.hf import vit_config

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8}


def test_defaults_are_those_of_transformers():
    for kind, values in vit_config.FORMATS.items():
        default = transformers.AutoConfig.for_model(kind).to_dict()
        assert {name: default[name] for name in values} == values


def test_class_names_are_ordered_by_number():
    hf_config = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
    names = {"10": "k", "2": "c", "0": "a"}
    assert vit_config.read_labels({**hf_config, "id2label": names}) == (("a", "c", "k"), False)
    assert vit_config.read_labels(hf_config) == (("LABEL_0", "LABEL_1"), False)  # what transformers leaves out
    assert vit_config.read_labels({**hf_config, "architectures": ["ViTModel"]}) == ((), False)
    reference = transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, intermediate_size=48))
    config = vit_config.read_config({**reference.config.to_diff_dict(), "architectures": hf_config["architectures"]})
    assert config["init_args"]["outputs"] == 2


def test_config_error_lists_every_problem():
    hf_config = {
        "model_type": "vit",
        "architectures": ["ViTForMaskedImageModeling"],
        "hidden_act": "selu",
        "head_dim": 3,
    }
    with pytest.raises(ValueError) as raised:
        vit_config.read_config({**hf_config, "image_size": 225})
    for rule in ("architectures must be one of ViTModel", "hidden_act must be one of gelu", "head_dim", "image_size"):
        assert rule in str(raised.value)
    dinov2 = {"model_type": "dinov2", "architectures": ["Dinov2Model"], **SIZES, "image_size": [16, 64]}
    with pytest.raises(ValueError, match=r"grid of DINOv2 must be square, got \(2, 8\)"):
        vit_config.read_config(dinov2)
    with pytest.raises(ValueError, match="model_type must be one of vit, deit"):
        vit_config.read_config({"model_type": "swin"})


def vit(encoder: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    trunk = {"class_path": "vitkit.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 4, **(encoder or {})}}
    return {
        "class_path": "vitkit.ViT",
        "init_args": {"encoder": trunk, "image_size": [24, 40], "patch_size": [8, 8], **model},
    }


def mae(**model: Any) -> dict[str, Any]:
    decoder = {"class_path": "vitkit.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    config = vit(decoder=decoder, **{"image_size": [16, 64], **model})
    return {**config, "class_path": "vitkit.MAE"}


SCALED = {"class_path": "vitkit.nn.PreNorm", "init_args": {"scale": 0.1}}
SWIGLU = {"class_path": "vitkit.nn.SwiGLU"}
GEGLU = {**SWIGLU, "init_args": {"gate": "torch.nn.GELU"}}
LINEAR, WINDOW = "vitkit.nn.LinearCore", {"class_path": "vitkit.nn.WindowCore", "init_args": {"size": 4}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (vit({"position": {"class_path": "vitkit.nn.Rotary"}}), "position must be left out"),
        (vit({"attention": {"class_path": "vitkit.nn.Attention", "init_args": {"kv_heads": 2}}}), "kv_heads"),
        (vit({"attention": {"class_path": "vitkit.nn.Attention", "init_args": {"bias": False}}}), "biases"),
        (vit({"attention": {"class_path": "vitkit.nn.Attention", "init_args": {"core": LINEAR}}}), "every key"),
        (vit({"attention": {"class_path": "vitkit.nn.Attention", "init_args": {"core": WINDOW}}}), "every key"),
        (vit({"norm": "torch.nn.RMSNorm"}), "norm must be LayerNorm"),
        (vit({"residual": "vitkit.nn.PostNorm"}), "residual must be"),
        (vit({"mlp": SWIGLU}), "mlp must be MLP"),
        (vit({"mlp": {"class_path": "vitkit.nn.MLP", "init_args": {"act": "torch.nn.Mish"}}}), "act must be one of"),
        (vit({"mlp": {"class_path": "vitkit.nn.MLP", "init_args": {"bias": False}}}), "mlp must have biases"),
        (vit({"residual": SCALED, "mlp": GEGLU}, outputs=0), "mlp must be gated by SiLU"),
        (vit({"final_norm": False}), "final_norm must be True"),
        (vit(pool="vitkit.nn.Mean"), "pool must be First"),
        (vit(pre_norm="vitkit.nn.LayerNorm"), "pre_norm must be left out"),
        (vit(prefix=3), "prefix must be 1 or 2"),
        (vit({"residual": SCALED}), "outputs must be 0"),
        (vit({"residual": SCALED}, outputs=0), r"grid of DINOv2 must be square, got \(3, 5\)"),
        (vit({"residual": SCALED, "mlp": {**SWIGLU, "init_args": {"ratio": 1.3}}}, outputs=0), "whole number of times"),
        (mae(image_size=[24, 40]), "number of patches must be a square"),
        (mae(patch_size=[8, 4]), "patch_size must be square"),
        (mae(prefix=2), "prefix must be 1"),
        ({"class_path": "vitkit.nn.MLP", "init_args": {"dim": 3}}, "config must be of a ViT or an MAE"),
    ],
)  # fmt: skip
def test_config_without_a_class_in_transformers_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        vit_config.write_config(config)


def test_export_error_lists_every_problem():
    with pytest.raises(ValueError, match=r"position must.*prefix must.*pool must"):
        vit_config.write_config(vit({"position": {"class_path": "vitkit.nn.Rotary"}}, pool="vitkit.nn.Mean", prefix=3))
