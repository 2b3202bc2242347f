"""Models exported to other libraries, loaded there as their users load them."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from timm.data import create_transform, resolve_model_data_config
from torch.testing import assert_close

import vitkit
from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.convert import programs, write
from vitkit.data.preprocess import Preprocess
from vitkit.models import MAE, ViT

transformers = pytest.importorskip("transformers")
open_clip = pytest.importorskip("open_clip")
CLASSES = ("cat", "dög", "owl")
CLIP: dict[str, Any] = {
    "pre_norm": {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": 1e-5}},
    "encoder": {
        "norm": {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": 1e-5}},
        "mlp": {"class_path": "vitkit.nn.MLP", "init_args": {"act": "vitkit.nn.QuickGELU"}},
    },
}
PROJECTION = {"class_path": "torch.nn.Linear", "init_args": {"bias": False}}
SCALED = {"class_path": "vitkit.nn.PreNorm", "init_args": {"scale": 1.0}}
IMAGES = torch.linspace(0, 2000, 2 * 3 * 16 * 24).view(2, 3, 16, 24).sin()


MASKED: dict[str, Any] = {
    "kind": "MAE",
    "image_size": [16, 16],
    "decoder": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}},
}


def encoder_config(**arguments: Any) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 2, **arguments}}


def save_model(folder: Path, *, encoder: dict[str, Any] | None = None, kind: str = "ViT", **arguments: Any) -> Path:
    """Write a model folder with random parameters; the head's bias is zero where the layout has none."""
    sizes = {"image_size": [16, 24], "patch_size": [8, 8]} | ({"outputs": 3} if kind == "ViT" else {})
    init_args = {**sizes, **arguments, "encoder": encoder_config(**(encoder or {}))}
    config = {"class_path": f"vitkit.models.{kind}", "init_args": init_args}
    model = model_config.build_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.2)
            if arguments.get("pre_norm") and name == "head.bias":
                parameter.zero_()
    size = tuple(init_args["image_size"])
    classes = CLASSES[: init_args["outputs"]] if kind == "ViT" else ()
    save(folder, Bundle(model, config, Preprocess(size, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bilinear", 0.9), classes))
    return folder


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"table": "vitkit.nn.Sinusoidal", "pool": "vitkit.nn.Mean", "outputs": 0},
        {"prefix": 5, "encoder": {"residual": SCALED}},
        {"head": PROJECTION},
        CLIP,
    ],
)
def test_timm_loads_the_export_strictly(
    variant: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = save_model(tmp_path / "model", **variant), tmp_path / "out"
    assert main(["export", str(folder), "--to", "timm", "--out", str(out)]) == 0
    assert "config.json, model.safetensors, largest difference " in capsys.readouterr().out
    theirs: Any = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    ours = vitkit.open_model(folder)
    assert_close(theirs(IMAGES), ours.model(IMAGES), rtol=0, atol=write.TOLERANCE)
    settings = resolve_model_data_config(theirs)
    assert (settings["input_size"], [*settings["mean"]], [*settings["std"]]) == (
        (3, 16, 24),
        [0.4, 0.5, 0.6],
        [0.2, 0.3, 0.4],
    )
    assert (settings["interpolation"], settings["crop_pct"]) == ("bilinear", 0.9)
    assert (
        json.loads((out / "config.json").read_text()).get("label_names", ()) == [*ours.class_names]
        or not ours.class_names
    )
    again = vitkit.open_model(f"timm:{out}")
    assert (again.preprocess, again.class_names) == (ours.preprocess, ours.class_names)
    assert_close(again.model(IMAGES), ours.model(IMAGES), rtol=1e-5, atol=1e-5)


def test_timm_preprocesses_an_image_as_the_model_does(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    vitkit.export_to(folder, tmp_path / "out", "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=False)
    transform: Any = create_transform(**resolve_model_data_config(theirs))
    picture = Image.fromarray(torch.randint(256, (60, 90, 3), dtype=torch.uint8).numpy())
    assert_close(transform(picture), vitkit.open_model(folder).preprocess(picture), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ({}, "ViTForImageClassification"),
        ({"outputs": 0, "table": "vitkit.nn.Sinusoidal"}, "ViTModel"),
        (
            {"outputs": 0, "image_size": [16, 16], "encoder": {"residual": SCALED}},
            "Dinov2Model",
        ),
    ],
)
def test_transformers_loads_and_import_restores_an_export(variant: dict[str, Any], name: str, tmp_path: Path) -> None:
    folder, out = save_model(tmp_path / "model", **variant), tmp_path / "out"
    result = vitkit.export_to(folder, out, "hf")
    assert result.difference is not None and result.difference < 1e-5
    assert result.notes[0].startswith(f"transformers.{name}")
    assert any("stretched" in note for note in result.notes) == ("Dino" not in name)  # which is square
    theirs = transformers.AutoModel.from_pretrained(out, **({} if "Dino" in name else {"add_pooling_layer": False}))
    ours = vitkit.open_model(folder)
    assert isinstance(ours.model, ViT)
    images = IMAGES[..., : ours.preprocess.size[1]]
    assert_close(theirs.eval()(images).last_hidden_state, ours.model.features(images), rtol=0, atol=1e-4)
    again = vitkit.open_model(f"hf:{out}")
    assert_close(again.model(images), ours.model(images), rtol=1e-5, atol=1e-5)
    assert again.class_names == ours.class_names


@pytest.mark.parametrize("to", ["hf", "mae"])
def test_import_restores_an_exported_masked_autoencoder(to: str, tmp_path: Path) -> None:
    decoder = encoder_config(dim=16, heads=4)
    folder = save_model(tmp_path / "model", kind="MAE", decoder=decoder, image_size=[16, 16], norm_pix=True, ratio=0.5)
    result = vitkit.export_to(folder, tmp_path / "out", to)
    assert result.difference is not None and result.difference < 1e-5
    if to == "mae":
        assert {"mask_token", "decoder_pred.weight"} <= load_file(tmp_path / "out" / "model.safetensors").keys()
        overrides = vitkit.Overrides(heads=2, decoder_heads=4, norm_pix=True)
        vitkit.import_model(tmp_path / "out" / "model.safetensors", tmp_path / "again", overrides)
    source = f"hf:{tmp_path / 'out'}" if to == "hf" else tmp_path / "again"
    again, ours = vitkit.open_model(source).model, vitkit.open_model(folder).model
    assert isinstance(again, MAE) and isinstance(ours, MAE)
    again.ratio = ours.ratio
    images, noise = IMAGES[:, :, :, :16], torch.rand(2, 2, 2)
    assert_close(again(images, noise).pixels, ours(images, noise).pixels, rtol=1e-5, atol=1e-5)


def test_export_replaces_an_earlier_one_of_another_kind_of_model(tmp_path: Path) -> None:
    out = tmp_path / "out"
    vitkit.export_to(save_model(tmp_path / "classifier", image_size=[16, 16]), out, "hf")
    for name in ("tokenizer.json", "notes.txt"):
        (out / name).touch()
    vitkit.export_to(save_model(tmp_path / "mae", **MASKED), out, "mae", overwrite=True)
    assert {path.name for path in out.iterdir()} == {"model.safetensors", "notes.txt"}


def test_programs_replace_earlier_ones_of_another_kind_of_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "make_graphs", lambda *_: [])
    folder, out = save_model(tmp_path / "mae", **MASKED), tmp_path / "out"
    out.mkdir()
    for name in ("model.onnx", "classes.json", "notes.txt"):
        (out / name).touch()
    vitkit.export(folder, out, ["torch"], overwrite=True)
    assert {path.name for path in out.iterdir()} == {"preprocess.json", "notes.txt"}
    (folder / "model.onnx").touch()
    vitkit.export(folder, folder, ["torch"], overwrite=True)
    vitkit.open_model(folder)  # the files of the model stay


def test_encoder_of_a_classifier_exports_to_mae(tmp_path: Path) -> None:
    result = vitkit.export_to(save_model(tmp_path / "model", pool="vitkit.nn.First"), tmp_path / "out", "mae")
    assert result.difference is not None and result.difference < 1e-5
    assert not load_file(tmp_path / "out" / "model.safetensors")["pos_embed"][0, 0].any()


def test_head_without_a_bias_is_exported_with_zeros(tmp_path: Path) -> None:
    result = vitkit.export_to(save_model(tmp_path / "model", head=PROJECTION), tmp_path / "out", "hf")
    assert result.difference is not None and result.difference < 1e-5
    assert not load_file(tmp_path / "out" / "model.safetensors")["classifier.bias"].any()


def test_open_clip_loads_the_image_tower(tmp_path: Path) -> None:
    folder, out = save_model(tmp_path / "model", **CLIP), tmp_path / "out"
    result = vitkit.export_to(folder, out, "openclip")
    assert result.difference is not None and result.difference < 1e-5
    assert all(name.startswith("visual.") for name in load_file(out / "open_clip_model.safetensors"))
    assert any("cropped to 0.9 here" in note for note in result.notes)
    again = vitkit.open_model(f"openclip:{out}")
    assert_close(again.model(IMAGES), vitkit.open_model(folder).model(IMAGES), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("to", ["timm", "hf", "mae", "openclip"])
def test_unsupported_model_is_a_one_line_error_and_leaves_no_file(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rotary = {"position": {"class_path": "vitkit.nn.Rotary", "init_args": {"axes": 2}}}
    folder = save_model(tmp_path / "model", encoder=rotary)
    assert main(["export", str(folder), "--to", to, "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "position" in error
    assert {*tmp_path.iterdir()} == {folder}


@pytest.mark.parametrize("to", ["timm", "hf", "mae", "openclip"])
def test_check_measures_outputs_of_other_weights(to: str, tmp_path: Path) -> None:
    """The difference of outputs shows weights that were written wrongly: here those of another model."""
    conversion = import_model_source(save_model(tmp_path / "model", **(CLIP if to == "openclip" else {})))
    (tmp_path / "out").mkdir()
    writer = write.WRITERS[to]
    state = {**conversion.state, "embed.patches.weight": conversion.state["embed.patches.weight"] * 1.5}
    writer.write(conversion._replace(state=state), tmp_path / "out")
    with torch.inference_mode():
        assert writer.check(conversion, tmp_path / "out") > write.TOLERANCE


def import_model_source(folder: Path) -> Any:
    from vitkit.convert.importer import import_source

    return import_source(folder)


def test_existing_folders_unknown_layouts_and_two_formats_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_model(tmp_path / "model")
    with pytest.raises(ValueError, match="out must be a new or empty folder"):
        vitkit.export_to(folder, folder, "timm")
    with pytest.raises(ValueError, match="to must be one of timm, hf, mae, openclip, got to=keras"):
        vitkit.export_to(folder, tmp_path / "out", "keras")
    with pytest.raises(SystemExit):
        main(["export", str(folder), "--to", "timm", "--format", "onnx", "--out", str(tmp_path / "out")])
    assert "not allowed with argument" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
