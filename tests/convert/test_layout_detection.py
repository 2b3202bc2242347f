import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.convert import mae_weights
from vitkit.convert.importer import build_bundle, import_source
from vitkit.convert.layout_detection import LAYOUTS, detect_layout
from vitkit.convert.open import open_model
from vitkit.convert.overrides import Overrides
from vitkit.convert.weight_files import WeightFile
from vitkit.data.preprocess import Preprocess
from vitkit.fit.initial_weights import read_model
from vitkit.models import MAE

PICTURES = Overrides(mean=(0.5,) * 3, std=(0.25,) * 3, interpolation="bilinear", crop=1.0)
ALL = PICTURES._replace(heads=2, size=(16, 24))
IMAGES = torch.linspace(-2, 2, 2 * 3 * 16 * 24).view(2, 3, 16, 24).sin()


def make_autoencoder(**arguments: Any) -> tuple[MAE, dict[str, Any]]:
    """Return a masked autoencoder with random parameters, and its config."""
    encoder, decoder = (
        {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": dim, "depth": 2, "heads": heads}}
        for dim, heads in ((32, 2), (16, 4))
    )
    tables = {"table": "vitkit.nn.Learned", "decoder_table": "vitkit.nn.Learned"}
    sizes = {"image_size": [16, 24], "patch_size": [8, 8], "ratio": 0.5}
    parts = {"encoder": encoder, "decoder": decoder}
    config = {"class_path": "vitkit.models.MAE", "init_args": {**parts, **tables, **sizes, **arguments}}
    model = model_config.build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    assert isinstance(model, MAE)
    return model.eval(), config


def test_timm_file_needs_overrides_for_what_tensors_do_not_hold(tiny: Callable[..., Any], tmp_path: Path) -> None:
    theirs = tiny()
    path = tmp_path / "weights.safetensors"
    save_file(theirs.state_dict(), path)
    with pytest.raises(ValueError) as raised:
        import_source(path)
    assert "give --heads, --size, --mean, --std, --interpolation, --crop, or --like" in str(raised.value)
    assert "\n" not in str(raised.value)
    conversion = import_source(path, ALL)
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES), rtol=1e-5, atol=1e-5)
    assert conversion.class_names == ("0", "1", "2")
    assert conversion.notes == (
        "CLS is read: no tensor is of another pool",
        "assumed, as no tensor shows it: activation gelu, epsilon 1e-06, resampling with antialias",
        "classes are called 0 to 2: the source has no names",
    )
    assert import_source(path, ALL._replace(classes=("a", "b", "c"))).class_names == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"mean must hold 3 numbers, one a channel, got mean=\(0.5,\)"):
        import_source(path, ALL._replace(mean=(0.5,)))
    with pytest.raises(ValueError, match="classes must be 3, as the head has outputs, got 2 names"):
        import_source(path, ALL._replace(classes=("a", "b")))


def test_unknown_missing_and_misshapen_tensors_are_listed_at_once(tiny: Callable[..., Any], tmp_path: Path) -> None:
    state = tiny().state_dict()
    del state["blocks.1.norm2.bias"]
    state |= {"extra.weight": torch.ones(2), "blocks.1.mlp.fc2.bias": torch.ones(5)}
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ValueError) as raised:
        build_bundle(import_source(tmp_path / "weights.pth", ALL))
    assert [line.split()[:2] for line in str(raised.value).splitlines()[1:]] == [
        ["!", "encoder.blocks.1.mlp.f.down.bias:"],
        ["-", "encoder.blocks.1.mlp.norm.bias:"],
        ["+", "extra.weight:"],
    ]
    assert "file (5,) (original name blocks.1.mlp.fc2.bias)\n" in str(raised.value)
    assert "not in the file (original name blocks.1.norm2.bias)\n" in str(raised.value)
    assert str(raised.value).endswith("extra.weight: file (2,), not in the model")


def test_usual_heads_and_square_positions_are_assumed_and_noted(tiny: Callable[..., Any], tmp_path: Path) -> None:
    theirs = tiny(img_size=24, embed_dim=192, num_heads=3, depth=1, num_classes=0)
    torch.save({"model": theirs.half().state_dict()}, tmp_path / "weights.pth")
    conversion = import_source(tmp_path / "weights.pth", PICTURES)
    assert conversion.notes == (
        f"kept in float32: {len(theirs.state_dict())} tensors of half precision; the numbers are the same",
        "3 heads, as is usual at width 192",
        "size (24, 24): the 10 positions are taken for a square",
        "CLS is read: no tensor is of another pool",
        "assumed, as no tensor shows it: activation gelu, epsilon 1e-06, resampling with antialias",
    )
    images = torch.randn(2, 3, 24, 24)
    assert_close(build_bundle(conversion).model(images), theirs.float()(images), rtol=1e-5, atol=1e-5)


def test_like_gives_architecture_and_preprocessing(tiny: Callable[..., Any], tmp_path: Path) -> None:
    theirs = tiny(img_size=32, patch_size=16, embed_dim=192, num_heads=3, depth=12, num_classes=1000)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    conversion = import_source(
        tmp_path / "weights.pth", Overrides(like="timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", crop=1.0)
    )
    assert conversion.preprocess.to_dict() == {
        "size": (32, 32),
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "interpolation": "bicubic",
        "crop": 1.0,
    }
    assert conversion.class_names[0] == "tench, Tinca tinca"
    assert any("positions are taken for a square" in note for note in conversion.notes)  # 224 x 224 is of another grid
    images = torch.randn(2, 3, 32, 32)
    assert_close(build_bundle(conversion).model(images), theirs(images), rtol=1e-5, atol=1e-5)


def test_whole_mae_uses_the_training_arguments_in_its_file(tmp_path: Path) -> None:
    ours, config = make_autoencoder(norm_pix=False)
    state = mae_weights.from_vitkit(ours.state_dict(), config)
    torch.save({"model": state, "args": argparse.Namespace(norm_pix_loss=False)}, tmp_path / "checkpoint-799.pth")
    overrides = Overrides(heads=2, size=(16, 24), decoder_heads=4)
    conversion = import_source(tmp_path / "checkpoint-799.pth", overrides)
    again = build_bundle(conversion).model
    assert isinstance(again, MAE)
    assert again.norm_pix is False
    again.ratio = ours.ratio
    noise = torch.rand(2, 2, 3)
    assert_close(again(IMAGES, noise).pixels, ours(IMAGES, noise).pixels, rtol=1e-5, atol=1e-5)
    assert conversion.preprocess.mean == (0.485, 0.456, 0.406)
    assert conversion.notes == (
        "assumed, as no tensor shows it: activation gelu, epsilon 1e-06, resampling without antialias",
        "preprocessing as in MAE's own code: ImageNet's mean and std, bicubic, crop 0.875",
        "norm_pix False, by the training arguments in the file",
    )
    torch.save({"model": state}, tmp_path / "mae_visualize.pth")
    with pytest.raises(ValueError, match="give --norm-pix or --no-norm-pix, or --like"):
        import_source(tmp_path / "mae_visualize.pth", overrides)
    assert import_source(tmp_path / "mae_visualize.pth", overrides._replace(norm_pix=True)).config["init_args"][
        "norm_pix"
    ]


def test_mae_encoder_gets_a_mean_pool_and_a_fine_tuned_one_keeps_its_norm(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    theirs = tiny(num_classes=0)
    with torch.no_grad():
        theirs.pos_embed[:, 0] = 0
    torch.save({"model": theirs.state_dict()}, tmp_path / "mae_pretrain.pth")
    conversion = import_source(tmp_path / "mae_pretrain.pth", Overrides(heads=2, size=(16, 24)))
    assert "an encoder of MAE, by its fixed positions: its tokens are averaged" in conversion.notes
    assert_close(
        build_bundle(conversion).model(IMAGES), theirs.forward_features(IMAGES)[:, 1:].mean(1), rtol=1e-5, atol=1e-5
    )
    tuned = tiny(global_pool="avg")
    torch.save({"model": tuned.state_dict()}, tmp_path / "mae_finetuned.pth")
    assert_close(
        build_bundle(import_source(tmp_path / "mae_finetuned.pth", ALL)).model(IMAGES),
        tuned(IMAGES),
        rtol=1e-5,
        atol=1e-5,
    )


def test_jax_file_gives_timms_outputs(tmp_path: Path, tiny: Callable[..., Any]) -> None:
    theirs = tiny(depth=1)
    block = "Transformer/encoderblock_0"
    attention = f"{block}/MultiHeadDotProductAttention_1"
    norms = ("Transformer/encoder_norm", f"{block}/LayerNorm_0", f"{block}/LayerNorm_2")
    shapes = {
        "embedding/kernel": (8, 8, 3, 32),
        "embedding/bias": (32,),
        "cls": (1, 1, 32),
        "Transformer/posembed_input/pos_embedding": (1, 7, 32),
        **{f"{name}/{end}": (32,) for name in norms for end in ("scale", "bias")},
        **{f"{attention}/{name}/kernel": (32, 2, 16) for name in ("query", "key", "value")},
        **{f"{attention}/{name}/bias": (2, 16) for name in ("query", "key", "value")},
        f"{attention}/out/kernel": (2, 16, 32),
        f"{attention}/out/bias": (32,),
        f"{block}/MlpBlock_3/Dense_0/kernel": (32, 128),
        f"{block}/MlpBlock_3/Dense_0/bias": (128,),
        f"{block}/MlpBlock_3/Dense_1/kernel": (128, 32),
        f"{block}/MlpBlock_3/Dense_1/bias": (32,),
        "head/kernel": (32, 3),
        "head/bias": (3,),
    }
    draw = np.random.default_rng(0)
    arrays = {name: draw.normal(scale=0.2, size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "weights.npz", **arrays)
    theirs.load_pretrained(str(tmp_path / "weights.npz"))
    with pytest.raises(ValueError, match="heads must be 2, as in the kernels of .*weights.npz, got heads=4"):
        import_source(tmp_path / "weights.npz", ALL._replace(heads=4))
    conversion = import_source(tmp_path / "weights.npz", PICTURES._replace(size=(16, 24)))
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("norm_pre.weight", {"pre_norm": True}), ("attn_pool.latent", {"global_pool": "map", "class_token": False})],
)
def test_parts_of_clip_and_siglip_need_a_description(
    name: str, arguments: dict[str, Any], tiny: Callable[..., Any], timm_folder: tuple[Path, Any], tmp_path: Path
) -> None:
    theirs = tiny(norm_layer=partial(nn.LayerNorm, eps=1e-5), act_layer="quick_gelu", **arguments)
    torch.save(theirs.state_dict(), path := tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=f"must be described by --like, .* of a model with {name}: take timm:vit_bas"):
        import_source(path, ALL)
    folder, _ = timm_folder
    config = json.loads((folder / "config.json").read_text()) | {"architecture": "vit_base_patch16_clip_224"}
    config["model_args"] |= {"act_layer": "quick_gelu", "pre_norm": False, **arguments}
    (folder / "config.json").write_text(json.dumps(config))
    conversion = import_source(path, Overrides(like=str(folder)))
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES), rtol=1e-5, atol=1e-5)
    note = f"activation quick_gelu, epsilon 1e-05, resampling with antialias, as in {folder}"
    assert note in conversion.notes


@pytest.mark.parametrize("prefix", ["", "model.", "module.net.", "opt/target/", "self_supervised.teacher_backbone."])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prefix_of_a_wrapper_is_taken_off_and_reported(layout: str, prefix: str) -> None:
    state = {f"{prefix}{name}": torch.ones(1) for name in (*LAYOUTS[layout], "another")}
    beside = {"criterion.weight": torch.ones(1)} if prefix else {}
    name, weights = detect_layout(WeightFile({**beside, **state}))
    assert (name, {*weights.state}) == (layout, {*LAYOUTS[layout], "another"})
    assert weights.notes == (
        (
            f"{prefix} is taken off the names of tensors",
            f"left out: 1 tensor beside {prefix}*, such as criterion.weight",
        )
        if prefix
        else ()
    )


def test_layout_needs_all_of_its_names() -> None:
    for names in LAYOUTS.values():
        with pytest.raises(ValueError, match="names must be of a known layout"):
            detect_layout(WeightFile(dict.fromkeys(names[1:], torch.ones(1))))
    inner = {f"model.vit.{name}": torch.ones(1) for name in LAYOUTS["transformers"]}
    assert {*detect_layout(WeightFile(inner))[1].state} == {f"vit.{name}" for name in LAYOUTS["transformers"]}


def test_teacher_is_read_beside_its_student(tiny: Callable[..., Any], tmp_path: Path) -> None:
    theirs = tiny(num_classes=0)
    copies = {"student.backbone.": tiny(num_classes=0), "teacher.backbone.": theirs}
    state = {f"{prefix}{name}": value for prefix, vit in copies.items() for name, value in vit.state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": {"path": tmp_path}}, tmp_path / "last.ckpt")
    conversion = import_source(tmp_path / "last.ckpt", ALL)
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES), rtol=1e-5, atol=1e-5)
    assert "teacher.backbone. is taken off the names of tensors" in conversion.notes


@pytest.mark.parametrize(
    ("others", "positions"),
    [
        ((), "rotary positions or none"),
        (("rope_embed.periods",), "rotary positions"),
        (("blocks.0.attn.relative_position_bias_table",), "relative positions"),
    ],
)
def test_models_of_timm_without_pos_embed_are_recognised(
    others: tuple[str, ...], positions: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    state = tiny().state_dict() | dict.fromkeys(others, torch.ones(1))
    del state["pos_embed"]
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=rf"a table of positions \(pos_embed\), got one of timm with {positions}; ViT"):
        import_source(tmp_path / "weights.pth", ALL)


def test_checkpoint_of_vitkit_points_to_its_model_folder(tmp_path: Path) -> None:
    ours, config = make_autoencoder()
    torch.save(
        {"state_dict": {f"model.{name}": ours.state_dict()[name] for name in ours.state_dict()}},
        path := tmp_path / "last.ckpt",
    )
    with pytest.raises(ValueError, match=r"holds weights of vitkit without the description of their model"):
        import_source(path)
    with pytest.raises(
        ValueError, match=rf"must be a model folder, got {path}; make one of a file of weights: vitkit i"
    ):
        open_model(path)
    save(tmp_path / "model", Bundle(ours, config, Preprocess((16, 24), (0.5,) * 3, (0.5,) * 3)))
    for read in (import_source, open_model, partial(read_model, option="pretrained")):
        with pytest.raises(ValueError, match=f"; try {tmp_path / 'model'}$"):
            read(path)
    with pytest.raises(ValueError, match=f"; try {tmp_path / 'model'}$"):
        import_source(tmp_path / "model" / "model.safetensors")


def test_mask_token_of_dinov2_is_no_mae(tiny: Callable[..., Any], tmp_path: Path) -> None:
    theirs = tiny(num_classes=0, init_values=1.0)
    torch.save({**theirs.state_dict(), "mask_token": torch.ones(1, 32)}, tmp_path / "dinov2.pth")
    conversion = import_source(tmp_path / "dinov2.pth", ALL)
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES), rtol=1e-5, atol=1e-5)
    assert any("mask_token" in note and "left out" in note for note in conversion.notes)
    assert any("by bicubic without antialias" in note and "table.resample" in note for note in conversion.notes)
    assert conversion.config["init_args"]["table"]["init_args"] == {"resample": "vitkit.nn.bicubic"}


def test_like_gives_the_size_if_its_positions_match(tiny: Callable[..., Any], tmp_path: Path) -> None:
    theirs = tiny(img_size=224, patch_size=16, embed_dim=192, num_heads=3, depth=12, num_classes=0)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    conversion = import_source(tmp_path / "weights.pth", Overrides(like="timm:vit_tiny_patch16_224"))
    assert "size (224, 224), as in timm:vit_tiny_patch16_224" in conversion.notes
    assert not any("taken for a square" in note for note in conversion.notes)


def test_impossible_numbers_raise_one_line(tiny: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(tiny().state_dict(), path)
    for overrides, message in (
        (ALL._replace(heads=0), "heads must be at least 1, got heads=0"),
        (ALL._replace(decoder_heads=-1), "heads must be at least 1, got decoder_heads=-1"),
        (ALL._replace(size=(16, 16)), "give --size for 7 positions, which are no square, not "),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            import_source(path, overrides)
        assert "\n" not in str(raised.value)


def test_non_finite_weights_raise_with_their_name(tiny: Callable[..., Any], tmp_path: Path) -> None:
    state = tiny().state_dict()
    state["blocks.1.norm2.bias"][3] = float("nan")
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(
        ValueError, match=r"must be finite, got nan or inf in 1 tensors, the first .*blocks.1.norm2.bias"
    ):
        build_bundle(import_source(tmp_path / "weights.pth", ALL))
