from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.convert import mae_weights
from vitkit.convert.importer import build_bundle, import_source
from vitkit.convert.overrides import Overrides
from vitkit.convert.reference_model import read_reference
from vitkit.data.preprocess import Preprocess
from vitkit.models import MAE

IMAGES = torch.linspace(-2, 2, 2 * 3 * 16 * 24).view(2, 3, 16, 24).sin()
PREPROCESS = Preprocess((16, 24), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bilinear", 0.9)


def make_encoder_config(dim: int, heads: int) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": dim, "depth": 2, "heads": heads}}


def write_model_folder(folder: Path, kind: str, **arguments: Any) -> Any:
    """Write a model folder with random parameters, and return the model and its config."""
    init_args = {"encoder": make_encoder_config(32, 2), "image_size": [16, 24], "patch_size": [8, 8], **arguments}
    config = {"class_path": f"vitkit.models.{kind}", "init_args": init_args}
    model = model_config.build_model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    save(folder, Bundle(model, config, PREPROCESS, ("cat", "dog", "owl") if kind == "ViT" else ()))
    return model, config


def test_timm_name_gives_architecture_and_preprocessing_without_weights() -> None:
    like = read_reference("vit_tiny_patch16_224.augreg_in21k_ft_in1k", {})
    assert (like.facts.heads, like.facts.size, like.facts.pool) == (3, (224, 224), "token")
    assert (like.traits["width"], like.traits["depth"], like.traits["mlp"]) == (192, 12, "MLP of 768")
    assert like.preprocess == Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3, "bicubic", 0.9)
    assert like.class_names is not None
    assert like.class_names[:2] == ("tench, Tinca tinca", "goldfish, Carassius auratus")
    with pytest.raises(ValueError, match="the class SwinTransformer"):
        read_reference("swin_tiny_patch4_window7_224", {})


@pytest.mark.parametrize(
    ("name", "differing"),
    [
        ("vit_base_patch14_dinov2", "width 768 for 32, depth 12 for 2, mlp MLP of 3072 for MLP of 128, patch (14, 14)"),
        ("vit_small_patch14_reg4_dinov2", "prefix tokens 5 for 1, LayerScale True for False"),
    ],
)
def test_another_architecture_raises_with_all_differences(
    name: str, differing: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    torch.save(tiny().state_dict(), tmp_path / "weights.pth")
    with pytest.raises(ValueError) as raised:
        import_source(tmp_path / "weights.pth", Overrides(like=f"timm:{name}", size=(16, 24)))
    assert differing in str(raised.value)
    assert "channels" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["", "timm:"])
def test_timm_folder_describes_a_file(scheme: str, timm_folder: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = timm_folder
    save_file(theirs.state_dict(), tmp_path / "alone.safetensors")
    conversion = import_source(tmp_path / "alone.safetensors", Overrides(like=f"{scheme}{folder}"))
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES), rtol=1e-5, atol=1e-5)
    assert (conversion.preprocess, conversion.class_names) == (PREPROCESS, ("cat", "dog", "owl"))


def test_model_folder_describes_a_file(tiny: Callable[..., Any], tmp_path: Path) -> None:
    table = {"class_path": "vitkit.nn.Learned", "init_args": {"resample": "vitkit.nn.bicubic"}}
    write_model_folder(tmp_path / "own", "ViT", table=table, outputs=3)
    theirs = tiny()
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    conversion = import_source(tmp_path / "weights.pth", Overrides(like=str(tmp_path / "own")))
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES), rtol=1e-5, atol=1e-5)
    assert (conversion.preprocess, conversion.class_names) == (PREPROCESS, ("cat", "dog", "owl"))
    assert conversion.config["init_args"]["table"] == table


def test_folder_of_a_masked_autoencoder_describes_the_decoder_too(tmp_path: Path) -> None:
    tables = {"table": "vitkit.nn.Learned", "decoder_table": "vitkit.nn.Learned"}
    ours, config = write_model_folder(
        tmp_path / "own", "MAE", decoder=make_encoder_config(16, 4), norm_pix=False, ratio=0.5, **tables
    )
    torch.save(mae_weights.from_vitkit(ours.state_dict(), config), tmp_path / "weights.pth")
    again = build_bundle(import_source(tmp_path / "weights.pth", Overrides(like=str(tmp_path / "own")))).model
    assert isinstance(again, MAE)
    assert again.norm_pix is False
    again.ratio = ours.ratio
    noise = torch.rand(2, 2, 3)
    assert_close(again(IMAGES, noise).pixels, ours(IMAGES, noise).pixels, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("like", ["empty", "openclip:ViT-B-32", "hf:me/x"])
def test_unsupported_reference_raises_one_line(like: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="like must be timm:NAME, or a folder with vitkit's config.yaml or") as raised:
        read_reference(str(tmp_path / like) if like == "empty" else like, {})
    assert "\n" not in str(raised.value)
