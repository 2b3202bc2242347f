"""Hugging Face's models with random parameters, in both layouts of names, and back through their own loader."""

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


def make_reference(name: str, kind: str, sizes: dict[str, Any], randomise: Callable[[nn.Module], nn.Module]) -> Any:
    return randomise(getattr(transformers, name)(getattr(transformers, kind)(**sizes)))


def save_reference(model: Any, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def import_model(state: dict[str, Tensor], hf_config: dict[str, Any]) -> Any:
    model = model_config.build_model(vit_config.read_config(hf_config)).double().eval()
    weights.load(
        model, vit_tensors.to_vitkit(state, hf_config), unused=vit_tensors.find_left_out(state, hf_config).patterns
    )
    return model


def export_model(model: Any, config: dict[str, Any], folder: Path, **options: Any) -> Any:
    """Load a model by transformers, which must load every tensor."""
    hf_config = vit_config.write_config(config)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(hf_config))
    save_file(vit_tensors.from_vitkit(model.state_dict(), config), folder / "model.safetensors", {"format": "pt"})
    kind = getattr(transformers, hf_config["architectures"][0])
    model, info = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float64, **options)
    assert not any(info.values()), info
    return model.eval()


def skip_pooler(name: str) -> dict[str, bool]:
    return {"add_pooling_layer": False} if name in ("ViTModel", "DeiTModel") else {}


def compute_tokens(model: Any, images: Tensor) -> Tensor:
    """Return all tokens, those of an MAE in their own order."""
    noise = {"noise": torch.arange(15.0).expand(len(images), -1)} if "MAE" in type(model).__name__ else {}
    return getattr(model, model.base_model_prefix, model)(images, **noise).last_hidden_state


@pytest.mark.parametrize("layout", ["file", "memory"])
@pytest.mark.parametrize("source", SOURCES)
def test_tokens_are_equal_in_both_directions(source, layout, randomise, tmp_path):
    name, kind, sizes = SOURCES[source]
    reference = make_reference(name, kind, {**sizes, "mask_ratio": 0.0} if "MAE" in name else sizes, randomise)
    state, hf_config = save_reference(reference, tmp_path / "theirs")
    state = state if layout == "file" else reference.state_dict()
    model = import_model(state, hf_config)
    images = torch.randn(2, sizes.get("num_channels", 3), *sizes["image_size"], dtype=torch.float64)
    expected = compute_tokens(reference, images)
    assert_close(model.features(images), expected, rtol=0, atol=1e-9)

    config = vit_config.read_config(hf_config)
    name = vit_config.write_config(config)["architectures"][0]
    exported = export_model(model, config, tmp_path / "ours", **skip_pooler(name))
    assert_close(compute_tokens(exported, images), expected, rtol=0, atol=1e-9)
    if config["init_args"]["outputs"]:
        logits = reference(images)
        expected = logits.cls_logits if "Teacher" in SOURCES[source][0] else logits.logits
        assert_close(model(images), expected, rtol=0, atol=1e-9)
        assert_close(exported(images).logits, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("layout", ["file", "memory", "transformers 4"])
@pytest.mark.parametrize("norm_pix", [True, False])
def test_mae_pixels_are_equal_in_both_directions(layout, norm_pix, randomise, tmp_path):
    reference = make_reference("ViTMAEForPreTraining", "ViTMAEConfig", {**MAE, "norm_pix_loss": norm_pix}, randomise)
    with torch.no_grad():
        reference.decoder.decoder_pos_embed[:, 0] = 0  # ours has no position for CLS
    state, hf_config = save_reference(reference, tmp_path / "theirs")
    if layout == "memory":
        state = reference.state_dict()
    if layout == "transformers 4":
        state = {name.replace("decoder_encoder.layer", "decoder_layers"): tensor for name, tensor in state.items()}
    model = import_model(state, hf_config)
    exported = export_model(model, vit_config.read_config(hf_config), tmp_path / "ours")
    images, noise = torch.randn(2, 3, 16, 64, dtype=torch.float64), torch.rand(2, 16)
    output = model(images, noise.view(2, 2, 8))
    for other in (reference, exported):
        visible = other.vit(images, noise=noise)
        pixels = other.decoder(visible.last_hidden_state, visible.ids_restore).logits  # its loss wants square images
        assert torch.equal(output.hidden, visible.mask.nonzero()[:, 1].view(2, -1))
        assert_close(output.pixels, pixels[visible.mask.bool()].view(2, 12, -1), rtol=0, atol=1e-9)
    other.vit.embeddings.config.mask_ratio = 0.0
    tokens = other.vit(images, noise=torch.arange(16.0).expand(2, -1)).last_hidden_state
    assert_close(model.features(images), tokens, rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm_pix", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loss_and_gradients_equal_transformers(norm_pix, dtype, randomise, tmp_path):
    sizes = {**MAE, "image_size": 32, "norm_pix_loss": norm_pix, "layer_norm_eps": 1e-6}
    reference = make_reference("ViTMAEForPreTraining", "ViTMAEConfig", sizes, randomise).to(dtype)
    with torch.no_grad():
        reference.decoder.decoder_pos_embed[:, 0] = 0
    hf_config = save_reference(reference, tmp_path)[1]
    model = import_model(reference.state_dict(), hf_config).to(dtype)
    images, noise = torch.randn(2, 3, 32, 32, dtype=dtype), torch.rand(2, 16)
    output = model(images, noise.view(2, 4, 4))
    loss = (output.pixels - model.make_target(images, output.hidden)).square().mean()
    expected = reference(images, noise=noise).loss
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    loss.backward()
    expected.backward()
    fixed = ("position_embeddings", "decoder_pos_embed")
    parameters = dict(reference.named_parameters())
    gradients = {name: parameters[name].grad for name in parameters if not name.endswith(fixed)}
    zeros = {name: torch.zeros_like(parameters[name]) for name in parameters if name.endswith(fixed)}
    converted = vit_tensors.to_vitkit({**gradients, **zeros}, hf_config)
    ours = {name: parameter.grad for name, parameter in model.named_parameters() if "table" not in name}
    assert_close(ours, {name: converted[name] for name in ours}, rtol=tolerance, atol=tolerance)


def test_resampled_positions_equal_transformers(randomise, tmp_path):
    images = torch.randn(2, 3, 40, 16, dtype=torch.float64)
    for source, options in (("ViT", {"interpolate_pos_encoding": True}), ("DINOv2", {}), ("registers", {})):
        name, kind, sizes = SOURCES[source]
        reference = make_reference(
            name, kind, {**sizes, "image_size": 32}, randomise
        )  # it takes every table for square
        state, hf_config = save_reference(reference, tmp_path / source)
        # DINOv2 resamples in float32: about 1e-7 of positions that are about 0.2.
        assert_close(
            import_model(state, hf_config).features(images),
            reference(images, **options).last_hidden_state,
            rtol=0,
            atol=1e-5,
        )


def test_half_precision_positions_are_not_rounded_again(tmp_path):
    hf_config = {"model_type": "vit", "architectures": ["ViTModel"], **VIT, "image_size": [24, 40]}
    state = {
        "embeddings.cls_token": torch.ones(1, 1, 32).half(),
        "embeddings.position_embeddings": torch.full((1, 16, 32), 2**-12).half(),
    }
    assert_close(vit_tensors.to_vitkit(state, hf_config)["embed.prefix"], torch.full((1, 32), 1 + 2**-12))


def test_notes_name_the_tensors_left_out(randomise, tmp_path):
    expected = {
        "ViT": ["pooler.*"],
        "ViT with a head": [],
        "DeiT with two heads": ["distillation_classifier.*"],
        "DINOv2": ["embeddings.mask_token"],
        "registers with a head": ["embeddings.mask_token", "classifier.*"],
    }
    for source, patterns in expected.items():
        reference = make_reference(*SOURCES[source], randomise)
        left_out = vit_tensors.find_left_out(*save_reference(reference, tmp_path / source))
        assert [*left_out.patterns] == patterns
        assert [note.split()[0] for note in left_out.notes] == patterns


def test_notes_name_dropout():
    hf_config = {"model_type": "vit", "architectures": ["ViTModel"], "hidden_dropout_prob": 0.1}
    assert vit_tensors.find_left_out({}, hf_config).notes == (
        "hidden_dropout_prob=0.1 is left out: it is for training",
    )


def test_error_lists_unknown_missing_and_misshapen_tensors(randomise, tmp_path):
    state, hf_config = save_reference(make_reference(*SOURCES["ViT with a head"], randomise), tmp_path)
    state["vit.embeddings.position_embeddings"] = torch.zeros(1, 17, 32)
    state["extra"] = torch.zeros(3)
    del state["vit.encoder.layer.1.attention.attention.key.weight"], state["vit.layernorm.bias"]
    with pytest.raises(ValueError) as raised:
        import_model(state, hf_config)
    for line in ("+ extra", "- encoder.norm.bias", "- embed.table.weight", "- encoder.blocks.1.attn.f.qkv.weight"):
        assert line in str(raised.value)
    assert "+ embeddings.position_embeddings: file (1, 17, 32)" in str(raised.value)


def test_decoder_with_a_position_for_cls_is_refused(randomise, tmp_path):
    state, hf_config = save_reference(make_reference("ViTMAEForPreTraining", "ViTMAEConfig", MAE, randomise), tmp_path)
    with pytest.raises(ValueError, match="decoder_pos_embed must be 0 for CLS"):
        vit_tensors.to_vitkit(state, hf_config)


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


@pytest.mark.parametrize("config", [vit(outputs=5, table="vitkit.nn.Sinusoidal"), mae(norm_pix=False, ratio=0.5)])
def test_table_without_parameters_is_exported_as_values(config, randomise, tmp_path):
    model = randomise(model_config.build_model(config))
    exported = export_model(model, config, tmp_path / "ours")
    images = torch.randn(2, 3, *config["init_args"]["image_size"], dtype=torch.float64)
    if "decoder" not in config["init_args"]:
        assert_close(exported(images).logits, model(images), rtol=0, atol=1e-9)
        return
    noise = torch.rand(2, 16)
    visible = exported.vit(images, noise=noise)
    pixels = exported.decoder(visible.last_hidden_state, visible.ids_restore).logits
    assert_close(
        model(images, noise.view(2, 2, 8)).pixels, pixels[visible.mask.bool()].view(2, 8, -1), rtol=0, atol=1e-9
    )
    assert exported.config.norm_pix_loss is False


def test_exported_folder_opens_by_auto_class_with_class_names(randomise, tmp_path):
    config = vit(outputs=3)
    model = randomise(model_config.build_model(config))
    hf_config = vit_config.write_config(config, ("cat", "dog", "emu"))
    (tmp_path / "config.json").write_text(json.dumps(hf_config))
    save_file(vit_tensors.from_vitkit(model.state_dict(), config), tmp_path / "model.safetensors", {"format": "pt"})
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path)
    assert loaded.config.id2label == {0: "cat", 1: "dog", 2: "emu"}
    assert vit_config.read_labels(hf_config) == (("cat", "dog", "emu"), False)
    with pytest.raises(ValueError, match="classes must be as many as outputs, got 2 for outputs=3"):
        vit_config.write_config(config, ("cat", "dog"))
