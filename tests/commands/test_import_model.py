import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.testing import assert_close

import vitkit
from vitkit.cli import main
from vitkit.convert.overrides import Overrides

SIZES = {"img_size": [16, 24], "patch_size": [8, 8], "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
PICTURES = ["--mean", "0.5", "0.5", "0.5", "--std", "0.25", "0.25", "0.25", "--interpolation", "bicubic", "--crop", "1"]
OPTIONS = ["--heads", "2", "--size", "16", "24", *PICTURES]


@pytest.fixture
def weights(tmp_path: Path) -> tuple[Path, Any]:
    model: Any = timm.create_model("vit_base_patch16_224", **SIZES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    torch.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pth")
    return tmp_path / "checkpoint.pth", model


def test_import_prints_the_model_and_the_folder_predicts(
    weights: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, timm_model = weights
    (tmp_path / "names.txt").write_text("cat\ndög\nowl\n", "utf-8")
    out = tmp_path / "out"
    assert main(["import", str(path), "--out", str(out), *OPTIONS, "--classes", str(tmp_path / "names.txt")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "architecture  ViT: encoder of 2 blocks, 32 wide, 2 heads",
        f"parameters    {sum(p.numel() for p in timm_model.parameters()) - 32:,}",  # CLS has no position
        "grid (h, w)   2 x 3 patches of 8 x 8 pixels",
        "pictures      16 x 24, bicubic, crop 1, mean 0.5 0.5 0.5, std 0.25 0.25 0.25",
        "classes       3 (cat, dög, ...)",
        "note: CLS is read: no tensor is of another pool",
        "note: assumed, as no tensor shows it: activation gelu, epsilon 1e-06, resampling with antialias",
        f"written to {out}",
    ]
    bundle = vitkit.open_model(out)
    model, preprocess, classes = bundle.model, bundle.preprocess, bundle.class_names
    images = torch.randn(2, 3, 16, 24)
    assert_close(model(images), timm_model(images), rtol=1e-5, atol=1e-5)
    assert (preprocess.size, classes) == ((16, 24), ("cat", "dög", "owl"))
    Image.new("RGB", (30, 40)).save(tmp_path / "picture.png")
    assert main(["predict", str(out), str(tmp_path / "picture.png")]) == 0


def test_failed_import_lists_every_tensor_and_leaves_no_file(
    weights: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, timm_model = weights
    state = timm_model.state_dict()
    del state["norm.bias"]
    torch.save({**state, "more": torch.ones(1)}, path)
    before = {*tmp_path.iterdir()}
    assert main(["import", str(path), "--out", str(tmp_path / "out"), *OPTIONS]) == 1
    error = capsys.readouterr().err
    assert "- encoder.norm.bias: model (32,), not in the file" in error
    assert "+ more: file (1,), not in the model" in error
    assert main(["import", str(path), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert {*tmp_path.iterdir()} == before


def test_pickled_code_is_not_run(weights: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'touched'}",)

    path, timm_model = weights
    torch.save({"model": timm_model.state_dict(), "args": Payload()}, path)
    assert main(["import", str(path), "--out", str(tmp_path / "out"), *OPTIONS]) == 1
    error = capsys.readouterr().err
    assert "refused, nothing in it was run" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "touched").exists()
    assert not (tmp_path / "out").exists()


def test_existing_folder_is_not_overwritten(weights: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = weights
    overrides = Overrides(heads=2, size=(16, 24), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", crop=1.0)
    (tmp_path / "out").mkdir()
    vitkit.import_model(path, tmp_path / "out", overrides)
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    with pytest.raises(ValueError, match="out must be a new or empty folder"):
        vitkit.import_model(path, tmp_path / "out", overrides)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_text_tower_folder_is_copied_unchanged(
    text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(text_folder), "--out", str(tmp_path / "again")]) == 0
    out = capsys.readouterr().out
    assert "TextTower: encoder of 2 blocks, 32 wide, 2 heads" in out and "up to 12 ids, CLIP's vocabulary" in out
    assert "grid" not in out and "pictures" not in out
    files = {path.name for path in text_folder.iterdir()}
    assert files == {path.name for path in (tmp_path / "again").iterdir()}
    assert all((tmp_path / "again" / name).read_bytes() == (text_folder / name).read_bytes() for name in files)
    assert main(["import", str(text_folder), "--out", str(tmp_path / "b"), "--crop", "1", "--tower", "image"]) == 1
    assert "describes itself; leave out --crop, --tower" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["", "hf:"])
def test_model_folder_is_copied_unchanged(scheme: str, weights: tuple[Path, Any], tmp_path: Path) -> None:
    overrides = Overrides(heads=2, size=(16, 24), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", crop=1.0)
    folder = tmp_path / "model"
    vitkit.import_model(weights[0], folder, overrides)
    (folder / "classes.json").write_text(json.dumps({"several": ["a", "b", "c"]}))
    conversion = vitkit.import_model(f"{scheme}{folder}", tmp_path / "again")
    assert conversion.notes == ()
    assert json.loads((tmp_path / "again" / "classes.json").read_text()) == {"several": ["a", "b", "c"]}
    for name in ("config.yaml", "preprocess.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_overrides_of_a_model_folder_apply_or_are_refused(weights: tuple[Path, Any], tmp_path: Path) -> None:
    overrides = Overrides(heads=2, size=(16, 24), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", crop=1.0)
    folder = tmp_path / "model"
    vitkit.import_model(weights[0], folder, overrides)
    conversion = vitkit.import_model(folder, tmp_path / "again", Overrides(mean=(0.4,) * 3, classes=("a", "b", "c")))
    assert conversion.notes == (f"mean (0.4, 0.4, 0.4) overrides (0.5, 0.5, 0.5) of {folder}",)
    preprocess = conversion.preprocess
    assert (preprocess.mean, preprocess.std) == ((0.4,) * 3, (0.5,) * 3)
    assert conversion.class_names == ("a", "b", "c")
    with pytest.raises(ValueError, match="describes itself; leave out --like, --heads"):
        vitkit.import_model(folder, tmp_path / "third", Overrides(heads=2, like="timm:vit_tiny_patch16_224"))
    with pytest.raises(ValueError, match="classes must be 3, as the head has outputs, got 2 names"):
        vitkit.import_model(folder, tmp_path / "third", Overrides(classes=("a", "b")))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.pth", "must be a folder or a file that exists"),
        ("picture.png", "a file of weights must be of safetensors, PyTorch or NumPy's arrays, got an empty one"),
        ("empty", "must be a folder with a config.json of transformers or timm"),
    ],
)
def test_source_without_a_model_is_a_one_line_error(
    source: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "picture.png").touch()
    (tmp_path / "empty").mkdir()
    assert main(["import", str(tmp_path / source), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_commands_open_names_as_they_open_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in the hub's format stands for a name, whose weights would have to be downloaded."""
    model: Any = timm.create_model("vit_base_patch16_224", **SIZES)
    folder = tmp_path / "timm model"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    cfg = {"input_size": [3, 16, 24], "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "crop_pct": 1}
    timm_config = {"architecture": "vit_base_patch16_224", "num_classes": 3, "label_names": ["a", "b", "c"]}
    (folder / "config.json").write_text(json.dumps({**timm_config, "model_args": SIZES, "pretrained_cfg": cfg}))
    Image.new("RGB", (30, 40)).save(tmp_path / "picture.png")
    for command in (
        ["predict", f"timm:{folder}", str(tmp_path / "picture.png")],
        ["predict", f"hf:{folder}", str(tmp_path / "picture.png"), "--format", "csv"],
        ["describe", f"timm:{folder}"],
        ["features", f"timm:{folder}", str(tmp_path / "picture.png"), "--unlabelled", "--out", str(tmp_path / "x.npz")],
    ):
        assert main(command) == 0, capsys.readouterr().err


@pytest.fixture
def read_help(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    def read_help() -> str:
        with pytest.raises(SystemExit):
            main(["import", "--help"])
        return capsys.readouterr().out

    return read_help


def test_help_shows_every_kind_of_source(read_help: Callable[[], str]) -> None:
    text = read_help()
    assert all(
        f"  {source}" in text for source in ("timm:NAME", "openclip:NAME@PRETRAINED", "hf:NAME", "FOLDER", "FILE")
    )
    assert text.count("vitkit import ") >= 6


def test_empty_line_in_a_list_of_classes_shifts_no_name(
    weights: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, out = tmp_path / "names.txt", tmp_path / "out"
    command = ["import", str(weights[0]), "--out", str(out), *OPTIONS, "--classes", str(names)]
    names.write_text("cat\n\ndog\nowl\n")
    assert main(command) == 1
    assert capsys.readouterr().err == f"error: {names}: every line must name a class, got none in line 2\n"
    names.write_text("\ufeffcat\ndog\nowl\n\n", "utf-8")
    assert main(command) == 0
    assert vitkit.open_model(out).class_names == ("cat", "dog", "owl")


def test_undecodable_class_names_are_an_error_with_the_path(
    weights: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "names.txt").write_bytes(b"\xff\xfe")
    options = [*OPTIONS, "--classes", str(tmp_path / "names.txt")]
    assert main(["import", str(weights[0]), "--out", str(tmp_path / "out"), *options]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'names.txt'}: ")


def test_import_over_a_trained_model_removes_its_record_of_samples(weights: tuple[Path, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["import", str(weights[0]), "--out", str(out), *OPTIONS]) == 0
    for name in ("samples.safetensors", "notes.txt"):
        (out / name).touch()
    assert main(["import", str(weights[0]), "--out", str(out), *OPTIONS, "--overwrite"]) == 0
    assert not (out / "samples.safetensors").exists() and (out / "notes.txt").exists()
