import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from torch.testing import assert_close

from vitkit.convert.importer import build_bundle, import_source
from vitkit.convert.open import open_model
from vitkit.convert.overrides import Overrides
from vitkit.convert.timm.catalog import read_timm_class_names
from vitkit.convert.write import write_layout
from vitkit.data.preprocess import Preprocess


@pytest.mark.parametrize("scheme", ["", "timm:", "hf:"])
def test_folder_gives_outputs_preprocessing_and_class_names(scheme: str, timm_folder: tuple[Path, Any]) -> None:
    folder, reference = timm_folder
    conversion = import_source(f"{scheme}{folder}")
    images = torch.randn(2, 3, 16, 24)
    assert_close(build_bundle(conversion).model(images), reference(images), rtol=1e-5, atol=1e-5)
    assert conversion.preprocess == Preprocess((16, 24), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bilinear", 0.9)
    assert (conversion.class_names, conversion.notes) == (("cat", "dog", "owl"), ())
    if scheme:
        bundle = open_model(f"{scheme}{folder}")
        assert not bundle.model.training
        assert_close(bundle.model(images), reference(images), rtol=1e-5, atol=1e-5)


def test_sets_of_labels_survive_an_export_to_timm(timm_folder: tuple[Path, Any], tmp_path: Path) -> None:
    conversion = import_source(timm_folder[0])._replace(multilabel=True)
    out = tmp_path / "out"
    out.mkdir()
    notes = write_layout("timm", conversion, out).notes  # timm loads the folder
    assert "a picture may have several classes" in notes[1]
    assert build_bundle(import_source(out)).multilabel
    (tmp_path / "alone").mkdir()
    weights = (out / "model.safetensors").rename(tmp_path / "alone" / "model.safetensors")
    assert import_source(weights, Overrides(like=str(out))).multilabel
    assert not import_source(weights, Overrides(like=str(timm_folder[0]))).multilabel


def test_window_and_background_are_options_of_an_import_and_notes_of_an_export(
    timm_folder: tuple[Path, Any], tmp_path: Path
) -> None:
    conversion = import_source(timm_folder[0], Overrides(window=(0, 4095), background="contrast"))
    assert conversion.preprocess is not None
    assert (conversion.preprocess.window, conversion.preprocess.background) == ((0, 4095), "contrast")
    assert conversion.notes[0].startswith("window (0, 4095) overrides None of ")
    assert write_layout("timm", conversion, tmp_path).notes[-2:] == (
        "grey of more than 8 bits is scaled from 0..4095 to 0..255 here; do that before, there",
        "transparent pictures are laid over a background (contrast) here; do that before, there",
    )


def test_differences_from_the_source_are_noted(timm_folder: tuple[Path, Any]) -> None:
    folder, _ = timm_folder
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["crop_mode"] = "squash"
    (folder / "config.json").write_text(json.dumps(config))
    conversion = import_source(folder, Overrides(crop=1.0, std=(0.2, 0.3, 0.4)))
    assert conversion.preprocess.crop == 1.0
    assert conversion.notes == (
        "pictures are cropped at the centre; the source has crop_mode 'squash'",
        f"crop 1.0 overrides 0.9 of {folder}",
    )
    with pytest.raises(ValueError, match="describes itself; leave out --heads"):
        import_source(folder, Overrides(heads=4, size=(16, 24)))


@pytest.mark.parametrize("sizes", [{"embed_dim": 30720}, {"depth": 10**12}, {"num_classes": 10**10}])
def test_model_larger_than_its_file_is_refused(sizes: dict[str, int], timm_folder: tuple[Path, Any]) -> None:
    folder, _ = timm_folder
    config = json.loads((folder / "config.json").read_text())
    config["model_args"] |= sizes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="must fit its weights|as many blocks as the file of weights"):
        import_source(folder)
    with pytest.raises(ValueError, match="must fit its weights|as many blocks as the file of weights"):
        import_source(folder / "model.safetensors", Overrides(like=str(folder)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(None, "must hold names and values, got model_args=None"), ({"depth": "12"}, "whole number, got depth='12'")],
)
def test_value_of_another_type_in_the_config_is_named(
    arguments: Any, message: str, timm_folder: tuple[Path, Any]
) -> None:
    folder, _ = timm_folder
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_args": arguments}))
    with pytest.raises(ValueError, match=message):
        import_source(folder)


def test_other_architectures_are_refused_before_they_are_created(timm_folder: tuple[Path, Any]) -> None:
    folder, _ = timm_folder
    config = {"architecture": "resnetv2_50", "pretrained_cfg": {}, "model_args": {"layers": [10**9] * 4}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="architecture must be a VisionTransformer of timm, got architecture=resnetv2"):
        import_source(folder)


def test_file_that_is_checked_is_the_one_that_is_loaded(timm_folder: tuple[Path, Any]) -> None:
    folder, reference = timm_folder
    (folder / "model.safetensors").rename(folder / "pytorch_model.safetensors")
    torch.save({name: torch.zeros_like(x) for name, x in reference.state_dict().items()}, folder / "pytorch_model.bin")
    images = torch.randn(2, 3, 16, 24)
    assert_close(open_model(f"timm:{folder}").model(images), reference(images), rtol=1e-5, atol=1e-5)


def test_pickle_with_code_is_refused(timm_folder: tuple[Path, Any], tmp_path: Path) -> None:
    folder, reference = timm_folder

    class Payload:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "touched",)

    (folder / "model.safetensors").unlink()
    torch.save({**reference.state_dict(), "x": Payload()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="refused, nothing in it was run") as raised:
        import_source(folder)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("outputs", [1000, 21843])
def test_class_names_of_imagenet_are_unique(outputs: int) -> None:
    names, notes = read_timm_class_names({"num_classes": outputs}, outputs)
    assert names is not None
    assert len({*names}) == outputs
    assert notes and str(outputs) in notes[0]


def test_class_names_come_from_the_config_alone() -> None:
    assert read_timm_class_names({"label_names": {"1": "b", "0": "a"}}, 2) == (("a", "b"), [])
    config = {"label_names": ["n1", "n2"], "label_descriptions": {"n1": "cat"}}
    assert read_timm_class_names(config, 2) == (("cat", "n2"), [])
    config = {"label_names": ["n1", "n2"], "label_descriptions": {"n1": "crane", "n2": "crane"}}
    assert read_timm_class_names(config, 2) == (("crane", "crane (2)"), [])
    assert read_timm_class_names({"num_classes": 7}, 7) == (None, [])
    assert read_timm_class_names({"num_classes": 1000}, 512) == (None, [])  # a CLIP's axes
    assert read_timm_class_names({}, 0) == ((), [])


@pytest.mark.parametrize("kind", ["deit", "no head"])
def test_outputs_are_equal_and_notes_name_the_tensors_left_out(kind: str, tiny: Callable[..., Any]) -> None:
    from vitkit.convert.timm.catalog import convert_timm_model

    if kind == "no head":
        reference = tiny(num_classes=0, in_chans=1)
        conversion = convert_timm_model("x", reference, Overrides(mean=(0.5,), std=(0.5,)))
        images = torch.randn(2, 1, 16, 24)
        assert_close(build_bundle(conversion).model(images), reference(images), rtol=1e-5, atol=1e-5)
        assert conversion.class_names == ()
        return
    arguments = {"img_size": (16, 24), "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    reference = timm.create_model("deit_tiny_distilled_patch16_224", **arguments).eval()
    conversion = convert_timm_model("x", reference, Overrides())
    images = torch.randn(2, 3, 16, 24)
    tokens = reference.forward_features(images)
    assert_close(build_bundle(conversion).model(images), reference.head(tokens[:, 0]), rtol=1e-5, atol=1e-5)
    assert any("head_dist" in note for note in conversion.notes)


def test_config_of_the_repository_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vit_base_patch32_clip_quickgelu_224.openai shares a repository whose config.json has another activation."""
    name, commit = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "0" * 40
    folder = tmp_path / f"models--timm--{name}" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(commit)
    reference: Any = timm.create_model("vit_tiny_patch16_224")
    save_file(reference.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": "vit_small_patch16_224", "pretrained_cfg": {}}))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for source in (f"timm:{name}", "timm:vit_tiny_patch16_224"):
        bundle = open_model(source)
        images = torch.randn(1, 3, 224, 224)
        assert_close(bundle.model(images), reference.eval()(images), rtol=1e-4, atol=1e-4)
        assert bundle.preprocess == Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3, "bicubic", 0.9)
        assert bundle.class_names[0] == "tench, Tinca tinca"
