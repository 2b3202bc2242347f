from pathlib import Path

import pytest
import torch
from PIL import Image

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.commands.learn import main
from vitkit.data.preprocess import Preprocess

CONFIG = {
    "class_path": "vitkit.models.ViT",
    "init_args": {
        "image_size": [8, 12],
        "patch_size": [4, 4],
        "outputs": 2,
        "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 2, "heads": 2}},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    preprocess = Preprocess((8, 12), (0.5,) * 3, (0.5,) * 3)
    save(tmp_path / "model", Bundle(model_config.build_model(CONFIG), CONFIG, preprocess, ("cat", "dog")))
    return tmp_path / "model"


def test_command_writes_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "learn.html"
    assert main(["-o", str(out)]) == 0
    assert 50_000 < out.stat().st_size < 1_000_000 and "not trained" in out.read_text("utf-8")
    assert f"{out}: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["learn.html"]
    with pytest.raises(ValueError, match="out must be a new file"):
        main(["-o", str(out)])


def test_page_shows_the_layer_and_positions_of_a_model(folder: Path, tmp_path: Path) -> None:
    Image.effect_noise((30, 20), 50).convert("RGB").save(tmp_path / "photo.png")
    for options in ([], ["--layer", "-1"], ["--picture", str(tmp_path / "photo.png")]):
        main([str(folder), "-o", str(tmp_path / "learn.html"), *options])
        text = (tmp_path / "learn.html").read_text("utf-8")
        assert f"These are the learned positions of {tmp_path.name}/model." in text and str(tmp_path) not in text
        assert '"shape":[1,2,7,7]' in text
        assert f"Layer {int('--layer' in options)} is shown, of layers 0 to 1." in text
        assert ("the picture photo.png" in text) == ("--picture" in options)
        (tmp_path / "learn.html").unlink()


def test_wrong_options_are_refused_before_writing(folder: Path, tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "learn.html")]
    for options, message in {
        (str(folder), "--language", "zh-CN"): "language must be one of en, zh, got language=zh-CN",
        (str(folder), "--layer", "2"): "layer must be from -2 to 1, got layer=2",
        ("--picture", "photo.png"): "picture must come with a model, got",
        (str(tmp_path / "nothing"),): "no such folder",
    }.items():
        with pytest.raises(ValueError, match=message):
            main([*options, *out])
    assert not (tmp_path / "learn.html").exists()


def test_clip_shows_its_image_tower(clip_folder: Path, tmp_path: Path) -> None:
    assert main([str(clip_folder), "--layer", "-1", "-o", str(tmp_path / "learn.html")]) == 0
    text = (tmp_path / "learn.html").read_text("utf-8")
    assert "These are the learned positions of run/clip." in text and '"shape":[1,2,7,7]' in text


def test_masked_autoencoder_shows_all_patches(tmp_path: Path) -> None:
    sizes = {name: size for name, size in CONFIG["init_args"].items() if name != "outputs"}
    config = {"class_path": "vitkit.models.MAE", "init_args": {**sizes, "decoder": sizes["encoder"]}}
    preprocess = Preprocess((8, 12), (0.5,) * 3, (0.5,) * 3)
    save(tmp_path / "run" / "mae", Bundle(model_config.build_model(config), config, preprocess))
    assert main([str(tmp_path / "run" / "mae"), "-o", str(tmp_path / "learn.html")]) == 0
    text = (tmp_path / "learn.html").read_text("utf-8")
    assert "Model: run/mae." in text and '"shape":[1,2,7,7]' in text
