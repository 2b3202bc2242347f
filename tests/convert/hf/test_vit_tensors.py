"""Hugging Face's models with random parameters, in both layouts of their names, and back through their own loader."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bundle import model_config, weights
from vitkit.convert.hf import vit_config, vit_tensors

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8, "num_labels": 5}
VIT = {**SIZES, "image_size": (24, 40), "intermediate_size": 48}  # a grid of 3 x 5
DINO = {**SIZES, "image_size": (32, 32), "mlp_ratio": 2}  # transformers reads its table as a square
MAE = {
    **VIT,
    "image_size": (16, 64),  # 2 x 8: transformers wants a square number of patches
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 40,
}
ACT = "gelu_pytorch_tanh"
SOURCES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("ViTModel", "ViTConfig", VIT),
    "ViT with a head": ("ViTForImageClassification", "ViTConfig", VIT),
    "ViT without biases": ("ViTForImageClassification", "ViTConfig", {**VIT, "qkv_bias": False, "num_channels": 1}),
    "ViT of other activations": ("ViTModel", "ViTConfig", {**VIT, "hidden_act": "quick_gelu", "layer_norm_eps": 0.1}),
    "ViT of oblong patches": (
        "ViTModel",
        "ViTConfig",
        {**VIT, "patch_size": (8, 4), "hidden_act": "gelu_pytorch_tanh"},
    ),
    "DeiT": ("DeiTModel", "DeiTConfig", VIT),
    "DeiT with a head": ("DeiTForImageClassification", "DeiTConfig", VIT),
    "DeiT with two heads": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {**VIT, "hidden_act": ACT}),
    "ViTMAE without its decoder": ("ViTMAEModel", "ViTMAEConfig", {**MAE, "image_size": (24, 40)}),
    "DINOv2": ("Dinov2Model", "Dinov2Config", DINO),
    "DINOv2 with SwiGLU": ("Dinov2Model", "Dinov2Config", {**DINO, "use_swiglu_ffn": True}),
    "DINOv2 with a head": ("Dinov2ForImageClassification", "Dinov2Config", DINO),
    "registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {**DINO, "num_register_tokens": 3}),
    "registers with a head": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        {**DINO, "num_register_tokens": 1, "use_swiglu_ffn": True},
    ),
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


def source(name: str, kind: str, sizes: dict[str, Any], randomise: Callable[[nn.Module], nn.Module]) -> Any:
    return randomise(getattr(transformers, name)(getattr(transformers, kind)(**sizes)))


def written(model: Any, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def imported(state: dict[str, Tensor], told: dict[str, Any]) -> Any:
    model = model_config.build_model(vit_config.read_config(told)).double().eval()
    weights.load(model, vit_tensors.to_vitkit(state, told), unused=vit_tensors.find_left_out(state, told).patterns)
    return model


def exported(model: Any, config: dict[str, Any], folder: Path, **options: Any) -> Any:
    """Through transformers' own loader, which may have nothing to complain of."""
    told = vit_config.write_config(config)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(told))
    save_file(vit_tensors.from_vitkit(model.state_dict(), config), folder / "model.safetensors", {"format": "pt"})
    of = getattr(transformers, told["architectures"][0])
    loaded, found = of.from_pretrained(folder, output_loading_info=True, dtype=torch.float64, **options)
    assert not any(found.values()), found
    return loaded.eval()


def unpooled(name: str) -> dict[str, bool]:
    return {"add_pooling_layer": False} if name in ("ViTModel", "DeiTModel") else {}


def hidden(model: Any, images: Tensor) -> Tensor:
    """All tokens, an MAE's in their own order."""
    noise = {"noise": torch.arange(15.0).expand(len(images), -1)} if "MAE" in type(model).__name__ else {}
    return getattr(model, model.base_model_prefix, model)(images, **noise).last_hidden_state


@pytest.mark.parametrize("layout", ["file", "memory"])
@pytest.mark.parametrize("which", SOURCES)
def test_a_model_comes_in_and_goes_out_with_the_same_tokens(which, layout, randomise, tmp_path):
    name, kind, sizes = SOURCES[which]
    reference = source(name, kind, {**sizes, "mask_ratio": 0.0} if "MAE" in name else sizes, randomise)
    state, told = written(reference, tmp_path / "theirs")
    state = state if layout == "file" else reference.state_dict()
    model = imported(state, told)
    images = torch.randn(2, sizes.get("num_channels", 3), *sizes["image_size"], dtype=torch.float64)
    expected = hidden(reference, images)
    assert_close(model.features(images), expected, rtol=0, atol=1e-9)

    config = vit_config.read_config(told)
    back = exported(model, config, tmp_path / "ours", **unpooled(vit_config.write_config(config)["architectures"][0]))
    assert_close(hidden(back, images), expected, rtol=0, atol=1e-9)
    if config["init_args"]["outputs"]:
        logits = reference(images)
        expected = logits.cls_logits if "Teacher" in name else logits.logits
        assert_close(model(images), expected, rtol=0, atol=1e-9)
        assert_close(back(images).logits, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("layout", ["file", "memory", "transformers 4"])
@pytest.mark.parametrize("norm_pix", [True, False])
def test_a_masked_autoencoder_says_the_same_both_ways(layout, norm_pix, randomise, tmp_path):
    reference = source("ViTMAEForPreTraining", "ViTMAEConfig", {**MAE, "norm_pix_loss": norm_pix}, randomise)
    with torch.no_grad():
        reference.decoder.decoder_pos_embed[:, 0] = 0  # ours has no position for CLS
    state, told = written(reference, tmp_path / "theirs")
    if layout == "memory":
        state = reference.state_dict()
    if layout == "transformers 4":
        state = {name.replace("decoder_encoder.layer", "decoder_layers"): tensor for name, tensor in state.items()}
    model = imported(state, told)
    back = exported(model, vit_config.read_config(told), tmp_path / "ours")
    images, noise = torch.randn(2, 3, 16, 64, dtype=torch.float64), torch.rand(2, 16)
    found = model(images, noise.view(2, 2, 8))
    for theirs in (reference, back):
        seen = theirs.vit(images, noise=noise)
        pixels = theirs.decoder(seen.last_hidden_state, seen.ids_restore).logits  # its loss wants square images
        assert torch.equal(found.hidden, seen.mask.nonzero()[:, 1].view(2, -1))
        assert_close(found.pixels, pixels[seen.mask.bool()].view(2, 12, -1), rtol=0, atol=1e-9)
    theirs.vit.embeddings.config.mask_ratio = 0.0
    every = theirs.vit(images, noise=torch.arange(16.0).expand(2, -1)).last_hidden_state
    assert_close(model.features(images), every, rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm_pix", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loss_and_gradients_are_those_of_transformers(norm_pix, dtype, randomise, tmp_path):
    sizes = {**MAE, "image_size": 32, "norm_pix_loss": norm_pix, "layer_norm_eps": 1e-6}
    reference = source("ViTMAEForPreTraining", "ViTMAEConfig", sizes, randomise).to(dtype)
    with torch.no_grad():
        reference.decoder.decoder_pos_embed[:, 0] = 0
    told = written(reference, tmp_path)[1]
    model = imported(reference.state_dict(), told).to(dtype)
    images, noise = torch.randn(2, 3, 32, 32, dtype=dtype), torch.rand(2, 16)
    found = model(images, noise.view(2, 4, 4))
    loss = (found.pixels - model.target(images, found.hidden)).square().mean()
    expected = reference(images, noise=noise).loss
    within = 1e-9 if dtype == torch.float64 else 1e-5
    assert_close(loss, expected, rtol=within, atol=within)
    loss.backward()
    expected.backward()
    fixed = ("position_embeddings", "decoder_pos_embed")
    gradients = {name: one.grad for name, one in reference.named_parameters() if not name.endswith(fixed)}
    zeros = {name: torch.zeros_like(one) for name, one in reference.named_parameters() if name.endswith(fixed)}
    converted = vit_tensors.to_vitkit({**gradients, **zeros}, told)
    ours = {name: one.grad for name, one in model.named_parameters() if "table" not in name}
    assert_close(ours, {name: converted[name] for name in ours}, rtol=within, atol=within)


def test_positions_are_resampled_as_transformers_does(randomise, tmp_path):
    images = torch.randn(2, 3, 40, 16, dtype=torch.float64)
    for which, options in (("ViT", {"interpolate_pos_encoding": True}), ("DINOv2", {}), ("registers", {})):
        name, kind, sizes = SOURCES[which]
        reference = source(name, kind, {**sizes, "image_size": 32}, randomise)  # it takes every table for square
        state, told = written(reference, tmp_path / which)
        # DINOv2 resamples in float32: about 1e-7 of positions that are about 0.2.
        assert_close(
            imported(state, told).features(images), reference(images, **options).last_hidden_state, rtol=0, atol=1e-5
        )


def test_half_precision_positions_are_not_rounded_again(tmp_path):
    told = {"model_type": "vit", "architectures": ["ViTModel"], **VIT, "image_size": [24, 40]}
    state = {
        "embeddings.cls_token": torch.ones(1, 1, 32).half(),
        "embeddings.position_embeddings": torch.full((1, 16, 32), 2**-12).half(),
    }
    assert_close(vit_tensors.to_vitkit(state, told)["embed.prefix"], torch.full((1, 32), 1 + 2**-12))


def test_what_is_dropped_is_said(randomise, tmp_path):
    said = {
        "ViT": ["pooler.*"],
        "ViT with a head": [],
        "DeiT with two heads": ["distillation_classifier.*"],
        "DINOv2": ["embeddings.mask_token"],
        "registers with a head": ["embeddings.mask_token", "classifier.*"],
    }
    for which, patterns in said.items():
        reference = source(*SOURCES[which], randomise)
        found = vit_tensors.find_left_out(*written(reference, tmp_path / which))
        assert [*found.patterns] == patterns
        assert [note.split()[0] for note in found.notes] == patterns


def test_dropout_is_said_to_be_left_out():
    told = {"model_type": "vit", "architectures": ["ViTModel"], "hidden_dropout_prob": 0.1}
    assert vit_tensors.find_left_out({}, told).notes == ("hidden_dropout_prob=0.1 is left out: it is for training",)


def test_an_unknown_a_missing_and_a_misshapen_tensor_are_one_error(randomise, tmp_path):
    state, told = written(source(*SOURCES["ViT with a head"], randomise), tmp_path)
    state["vit.embeddings.position_embeddings"] = torch.zeros(1, 17, 32)
    state["extra"] = torch.zeros(3)
    del state["vit.encoder.layer.1.attention.attention.key.weight"], state["vit.layernorm.bias"]
    with pytest.raises(ValueError) as raised:
        imported(state, told)
    for line in ("+ extra", "- encoder.norm.bias", "- embed.table.weight", "- encoder.blocks.1.attn.f.qkv.weight"):
        assert line in str(raised.value)
    assert "+ embeddings.position_embeddings: file (1, 17, 32)" in str(raised.value)


def test_a_decoder_with_a_position_for_cls_is_refused(randomise, tmp_path):
    state, told = written(source("ViTMAEForPreTraining", "ViTMAEConfig", MAE, randomise), tmp_path)
    with pytest.raises(ValueError, match="decoder_pos_embed must be 0 for CLS"):
        vit_tensors.to_vitkit(state, told)


def vit(encoder: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    own = {"class_path": "vitkit.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 4, **(encoder or {})}}
    return {
        "class_path": "vitkit.ViT",
        "init_args": {"encoder": own, "image_size": [24, 40], "patch_size": [8, 8], **model},
    }


def mae(**model: Any) -> dict[str, Any]:
    decoder = {"class_path": "vitkit.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    own = vit(decoder=decoder, **{"image_size": [16, 64], **model})
    return {**own, "class_path": "vitkit.MAE"}


@pytest.mark.parametrize("config", [vit(outputs=5, table="vitkit.nn.Sinusoidal"), mae(norm_pix=False, ratio=0.5)])
def test_a_table_without_parameters_is_written_out(config, randomise, tmp_path):
    model = randomise(model_config.build_model(config))
    back = exported(model, config, tmp_path / "ours")
    images = torch.randn(2, 3, *config["init_args"]["image_size"], dtype=torch.float64)
    if "decoder" not in config["init_args"]:
        assert_close(back(images).logits, model(images), rtol=0, atol=1e-9)
        return
    noise = torch.rand(2, 16)
    seen = back.vit(images, noise=noise)
    pixels = back.decoder(seen.last_hidden_state, seen.ids_restore).logits
    assert_close(model(images, noise.view(2, 2, 8)).pixels, pixels[seen.mask.bool()].view(2, 8, -1), rtol=0, atol=1e-9)
    assert back.config.norm_pix_loss is False


def test_a_folder_opens_through_the_auto_classes_with_its_class_names(randomise, tmp_path):
    config = vit(outputs=3)
    model = randomise(model_config.build_model(config))
    told = vit_config.write_config(config, ("cat", "dog", "emu"))
    (tmp_path / "config.json").write_text(json.dumps(told))
    save_file(vit_tensors.from_vitkit(model.state_dict(), config), tmp_path / "model.safetensors", {"format": "pt"})
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path)
    assert loaded.config.id2label == {0: "cat", 1: "dog", 2: "emu"}
    assert vit_config.read_class_names(told) == ("cat", "dog", "emu")
    with pytest.raises(ValueError, match="classes must be as many as outputs, got 2 for outputs=3"):
        vit_config.write_config(config, ("cat", "dog"))
