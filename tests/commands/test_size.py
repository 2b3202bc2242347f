"""--size of the commands: models used and imported at another image size than their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close

import vitkit
from vitkit import Encoder, ViT
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.bundle.image_bundle import resize_images
from vitkit.cli import main
from vitkit.convert.overrides import Overrides
from vitkit.data.preprocess import Preprocess

ENCODER = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 2}}
MODEL = {"encoder": ENCODER, "image_size": [32, 32], "patch_size": [8, 8], "outputs": 2}
TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
SETTINGS: Any = {"heads": 2, "mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic", "crop": 1.0}


@pytest.fixture
def folder(randomise: Callable[[nn.Module], nn.Module], tmp_path: Path) -> Path:
    config = {"class_path": "vitkit.models.ViT", "init_args": MODEL}
    model = ViT(Encoder(32, 2, 2), (32, 32), (8, 8), 2)
    preprocess = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3)
    (tmp_path / "model").mkdir()
    save(tmp_path / "model", Bundle(randomise(model).float(), config, preprocess, ("cat", "dog")))
    for index, name in enumerate(("cat", "dog") * 2):
        path = tmp_path / "pictures" / name / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 40), 64).convert("RGB").save(path)
    return tmp_path / "model"


@pytest.mark.parametrize(
    "command",
    [
        ["attend", "{model}", "{pictures}/cat", "--out", "{out}", "--json"],
        ["features", "{model}", "{pictures}", "--out", "{out}.npz", "--dense"],
        ["evaluate", "{model}", "{pictures}", "--out", "{out}", "--no-probe"],
        ["explain", "{model}", "{pictures}/cat/0.png", "--out", "{out}.html"],
    ],
    ids=lambda command: command[0],
)
def test_commands_take_a_model_at_another_size_and_print_what_is_resampled(
    command: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"model": folder, "pictures": tmp_path / "pictures", "out": tmp_path / "out"}
    words = [word.format(**names) for word in command]
    assert main([*words, "--size", "16", "24"]) == 0
    note = "images are 16 x 24 pixels, not 32 x 32; positions of 4 x 4 patches are resampled to 2 x 3"
    assert f"note: {folder}: {note}\n" in capsys.readouterr().err


def test_size_must_suit_the_patches_and_the_table_of_positions(folder: Path) -> None:
    class FixedTable(nn.Module):
        def forward(self, positions: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "1 N D"]:
            if grid != (4, 4):
                raise ValueError(f"grid must be (4, 4), got grid={grid}")
            return torch.zeros(1, 16, 32)

    bundle = vitkit.open_model(folder)
    with pytest.raises(ValueError, match="image_size must be a multiple of patch_size"):
        resize_images(bundle, (20, 24))
    fixed = ViT(Encoder(32, 2, 2), (32, 32), (8, 8), 2, table=lambda dim, grid: FixedTable())
    with pytest.raises(ValueError, match=r"grid must be \(4, 4\), got grid=\(2, 2\)"):
        resize_images(bundle._replace(model=fixed), (16, 16))


def test_imported_model_keeps_its_weights_at_another_size(folder: Path, tmp_path: Path) -> None:
    conversion = vitkit.import_model(folder, tmp_path / "small", Overrides(size=(16, 16)))
    assert f"size (16, 16) overrides (32, 32) of {folder}" in conversion.notes
    assert "are resampled" in conversion.notes[-1]
    small = vitkit.open_model(tmp_path / "small")
    images = torch.randn(2, 3, 16, 16)
    assert small.preprocess is not None and small.preprocess.size == (16, 16)
    assert_close(small.model(images), vitkit.open_model(folder).model(images))
    with pytest.raises(ValueError, match="image_size must be a multiple of patch_size"):
        vitkit.import_model(folder, tmp_path / "odd", Overrides(size=(16, 20)))
    assert not (tmp_path / "odd").exists()


def test_bare_weights_are_imported_at_another_size_than_their_positions(tmp_path: Path) -> None:
    model: Any = timm.create_model("vit_base_patch16_224", **TIMM)
    torch.save(model.state_dict(), tmp_path / "square.pth")
    vitkit.import_model(tmp_path / "square.pth", tmp_path / "square", Overrides(size=(16, 16), **SETTINGS))
    bundle = vitkit.open_model(tmp_path / "square")
    assert bundle.preprocess is not None and bundle.preprocess.size == (16, 16)
    assert bundle.config["init_args"]["image_size"] == [32, 32]
    model = timm.create_model("vit_base_patch16_224", **(TIMM | {"img_size": (16, 24)}))
    torch.save(model.state_dict(), tmp_path / "wide.pth")
    with pytest.raises(ValueError, match=r"give --size for 7 positions, which are no square, not \(16, 16\)"):
        vitkit.import_model(tmp_path / "wide.pth", tmp_path / "wide", Overrides(size=(16, 16), **SETTINGS))
