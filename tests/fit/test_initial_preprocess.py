"""Deep and transparent images: what a run measures at its start, keeps when it resumes, and gives its model folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.data.images import Images
from vitkit.data.preprocess import Preprocess
from vitkit.data.views import View, Views
from vitkit.fit.initial_preprocess import adapt_preprocess

GREY = Preprocess((8, 8), (0.5,), (0.5,))
SHORT = ("--model.base_lr=0.3", "--model.schedule.warmup=0")


def fit(config: Path, run: Path, *options: str) -> int:
    return main(["fit", "--config", str(config), "--run", str(run), *options])


def write_images(folder: Path, draw: Callable[[str, int], Any]) -> Path:
    for name in ("bright", "dark"):
        (folder / name).mkdir(parents=True)
        for index in range(20):
            Image.fromarray(draw(name, index)).save(folder / name / f"{index}.png")
    return folder


def write_shades(folder: Path, scale: int = 1) -> Path:
    """Write dark and bright noise of 12 bits, times `scale`, as PNG of 16 bits."""
    generator = np.random.default_rng(0)
    least = {"bright": 2595, "dark": 0}
    return write_images(
        folder, lambda name, _: (generator.integers(0, 1500, (8, 8)) + least[name]).astype(np.uint16) * np.uint16(scale)
    )


@pytest.fixture
def shades(tmp_path: Path) -> Path:
    """A config that learns the images of `write_shades` if their contrast is seen."""
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 2}}
    model = {"class_path": "vitkit.models.ViT", "init_args": {"patch_size": [4, 4], "encoder": encoder}}
    data = {"train": "", "batch": 8, "preprocess": {"size": [8, 8], "mean": [0.5], "std": [0.5]}}
    content = {
        "model": {"class_path": "vitkit.tasks.classify.Classify", "init_args": {"model": model}},
        "data": {"class_path": "vitkit.data.images.Images", "init_args": data},
        "trainer": {"max_epochs": 5, "enable_progress_bar": False, "accelerator": "cpu", "precision": "32-true"},
        "ema": {"decay": 0},
        "threads": 1,
    }
    path = tmp_path / "shades.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_12_bits_in_16_train_to_the_accuracy_of_16(
    shades: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow, wide = write_shades(tmp_path / "narrow"), write_shades(tmp_path / "wide", 16)
    for data, window in ((narrow, (0, 4095)), (wide, None)):
        run = tmp_path / f"run-{data.name}"
        assert fit(shades, run, f"--data.train={data}", *SHORT) == 0
        assert json.loads((run / "report.json").read_text())["top1"] == 1
        assert open_model(run / "model").preprocess == Preprocess((8, 8), (0.5,), (0.5,), window=window)
        low, high = window or (0, 65535)
        lines = [line for line in capsys.readouterr().out.splitlines() if "grey of more than 8 bits" in line]
        assert len(lines) == 1 and lines[0].endswith(f"; preprocess.window = [{low}, {high}]")


def test_resumed_run_keeps_the_window_of_its_model_folder(
    shades: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = tmp_path / "run", f"--data.train={write_shades(tmp_path / 'narrow')}"
    file = run / "model" / "preprocess.json"
    assert fit(shades, run, data, "--trainer.max_epochs=1", *SHORT) == 0
    fields = json.loads(file.read_text())
    assert fields.pop("window") == [0, 4095]
    capsys.readouterr()
    # The second is of a run that began before there were windows.
    for epochs, content in ((2, fields | {"window": [0, 4000]}), (3, fields)):
        file.write_text(json.dumps(content))
        assert fit(shades, run, data, f"--trainer.max_epochs={epochs}", *SHORT) == 0
        assert json.loads(file.read_text()) == content
    assert "sampled" not in capsys.readouterr().out


def test_white_drawings_keep_their_contrast(tmp_path: Path) -> None:
    def draw(name: str, index: int) -> np.ndarray:
        image = np.zeros((8, 8, 4), np.uint8)
        image[:, index % 4 : index % 4 + 4] = 255  # white and opaque
        return image

    folder = str(write_images(tmp_path / "drawings", draw))
    for background, contrast in ((None, 2), ("white", 0)):
        data = Images(folder, preprocess=Preprocess((8, 8), (0.5,), (0.5,), background=background))
        (line,) = adapt_preprocess(data, None)
        assert line.startswith("32 of 32 sampled pictures are transparent, and white would hide 32 of them")
        for loader in (data.train_dataloader(), data.val_dataloader()):
            low, high = next(iter(loader)).images.flatten(1).aminmax(dim=1)
            assert (high - low == contrast).all()


def test_window_reaches_all_views_in_their_sizes(tmp_path: Path) -> None:
    data = Views(str(write_shades(tmp_path / "narrow")), preprocess=GREY, views=[View((8, 8)), View((4, 4), count=2)])
    adapt_preprocess(data, None)
    preprocessings = [pictures.preprocess for pictures in (*data.training_views, data.validation_pictures)]
    assert {preprocess.window for preprocess in preprocessings} == {(0, 4095)}
    assert [preprocess.size for preprocess in preprocessings] == [(8, 8), (4, 4), (4, 4), (8, 8)]
