"""Pretrained, fine-tuned, used: each command takes the folder that the one before it wrote."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.commands.describe import open_described
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess
from vitkit.fit.initial_weights import last, pretrained
from vitkit.models import MAE, ViT
from vitkit.nn import Mean

RECIPE = Path(__file__).parents[2] / "configs" / "finetune_folder.yaml"
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--data.workers=0", "--threads=1")
STEP = ("--trainer.max_epochs=1", "--trainer.max_steps=1", "--model.schedule.warmup=0", "--report.baselines=false")
PREPROCESS = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3, crop=0.9)
RECONSTRUCT = "vitkit.tasks.reconstruction.Reconstruct"


def encoder(dim: int) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": dim, "depth": 2, "heads": 2}}


CONFIG = {
    "class_path": "vitkit.models.MAE",
    "init_args": {
        "encoder": encoder(16),
        "decoder": encoder(8),
        "image_size": [16, 24],
        "patch_size": [8, 8],
        "prefix": 2,
        "table": "vitkit.nn.Learned",
        "ratio": 0.5,
    },
}


@pytest.fixture
def mae(tmp_path: Path) -> Path:
    network = model_config.build_model(CONFIG)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save(tmp_path / "mae", Bundle(network, CONFIG, PREPROCESS))
    return tmp_path / "mae"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for name, level in {"dark": 40, "light": 200}.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            pixels = level + generator.integers(-30, 30, (20, 28, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_from_a_mae_to_predictions_each_step_takes_the_folder_of_the_one_before(
    mae: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    options = [f"--config={RECIPE}", f"--pretrained={mae}", f"--data.train={pictures}", f"--run={run}"]
    assert main(["fit", *options, *QUIET, *STEP, "--model.lr=0"]) == 0
    out = capsys.readouterr().out
    assert f"weights of {mae}\n  the decoder is left behind\n  a new head for 2 classes\n" in out
    bundle = open_model(run / "model")
    network, preprocess, classes = bundle.model, bundle.preprocess, bundle.class_names
    before = open_model(mae).model
    assert isinstance(network, ViT) and isinstance(network.pool, Mean) and isinstance(before, MAE)
    assert (classes, preprocess) == (("dark", "light"), PREPROCESS)
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    features = before.double().features(images)
    assert_close(network.double().features(images), features, rtol=0, atol=1e-12)
    assert_close(network(images), network.head(features[:, 2:].mean(1)), rtol=0, atol=1e-12)
    assert main(["predict", str(run / "model"), str(pictures), "--format=jsonl", "--device=cpu"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 12 and all({*row["labels"]} == {"dark", "light"} for row in rows)
    assert main(["evaluate", str(run / "model"), str(pictures), "--no-probe", "--device=cpu"]) == 0
    assert "top-1 accuracy" in capsys.readouterr().out


def test_layers_of_the_encoder_learn_at_decayed_rates(
    mae: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--config={RECIPE}", f"--pretrained={mae}", f"--data.train={pictures}", *QUIET]
    assert main(["fit", *options, "--print_groups", "--model.lr=1", "--model.layer_decay=0.5"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("model.")]
    assert not [line[0] for line in lines if "decoder" in line[0]]
    found = {line[0].removeprefix("model."): (line[-2], float(line[-1])) for line in lines}
    assert found["embed.patches.weight"] == ("0.05", 0.125)
    assert found["embed.prefix"] == found["embed.table.weight"] == ("0", 0.125)
    assert found["encoder.blocks.0.mlp.f.up.weight"] == ("0.05", 0.25)
    assert found["encoder.blocks.1.mlp.norm.weight"] == ("0", 0.5)
    assert found["head.weight"] == ("0.05", 1) and found["encoder.norm.bias"] == ("0", 1)


def test_size_and_channels_may_be_others(
    mae: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--config={RECIPE}", f"--pretrained={mae}", f"--data.train={pictures}", f"--run={tmp_path / 'run'}"]
    grey = ["--data.size=[24, 32]", "--data.mean=[0.5]", "--data.std=[0.25]", "--model.model.encoder.drop_path=0.1"]
    assert main(["fit", *options, *QUIET, *STEP, *grey]) == 0
    out = capsys.readouterr().out
    assert "embed.patches from 3 to 1 channels" in out and "embed.table from (2, 3) to (3, 4)" in out
    assert open_model(tmp_path / "run" / "model").model(torch.zeros(1, 1, 24, 32)).shape == (1, 2)


def test_a_mae_stays_one_where_the_task_is_to_reconstruct(mae: Path, pictures: Path, tmp_path: Path) -> None:
    recipe = further(tmp_path, pictures)
    subject, *_ = open_described(str(recipe), [f"--pretrained={mae}", *QUIET])
    assert isinstance(subject.model, MAE) and subject.model.ratio == 0.5
    assert_close(subject.model.state_dict(), open_model(mae).model.state_dict(), rtol=0, atol=0)
    assert main(["fit", f"--config={recipe}", f"--pretrained={mae}", f"--run={tmp_path / 'run'}", *QUIET]) == 0
    found = open_model(tmp_path / "run" / "model")
    assert isinstance(found.model, MAE) and (found.class_names, found.preprocess) == ((), PREPROCESS)


def test_a_classifier_is_not_pretrained_further(
    mae: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--config={RECIPE}", f"--pretrained={mae}", f"--data.train={pictures}", f"--run={tmp_path / 'run'}"]
    assert main(["fit", *options, *QUIET, *STEP]) == 0
    capsys.readouterr()
    recipe, model = further(tmp_path, pictures), tmp_path / "run" / "model"
    assert main(["fit", f"--config={recipe}", f"--pretrained={model}", f"--run={tmp_path / 'more'}", *QUIET]) == 1
    error = capsys.readouterr().err
    assert re.search(rf"^error: pretrained must be an MAE to be pretrained further, got [\w.]+ViT in {model}$", error)
    assert not (tmp_path / "more").exists()


def further(folder: Path, pictures: Path) -> Path:
    """A recipe for one more step of pretraining, on pictures without labels."""
    task = {"class_path": RECONSTRUCT, "init_args": {"lr": 1e-3}}
    data = {"class_path": "vitkit.data.images.Images", "init_args": {"train": str(pictures), "unlabelled": True}}
    trainer = {"max_epochs": 1, "max_steps": 1}
    (folder / "further.yaml").write_text(yaml.safe_dump({"model": task, "data": data, "trainer": trainer}))
    return folder / "further.yaml"


def test_the_last_word_on_the_task_counts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {class_path: a.A, init_args: {lr: 1}}")
    (tmp_path / "b.yaml").write_text("model: {init_args: {lr: 2}}\ntrainer: {}")
    (tmp_path / "c.yaml").write_text("- model")
    keys = ("model", "class_path")
    a, b, c = (f"--config={tmp_path / name}.yaml" for name in "abc")
    assert last([a, b, c], ("--model",), *keys) == "a.A"
    assert last([a, "--model=b.B"], ("--model",), *keys) == "b.B"
    assert last(["--model", "b.B", a], ("--model",), *keys) == "a.A"
    assert last([b], ("--model",), *keys) is None


def test_a_name_of_another_library_is_told_to_be_imported_first():
    with pytest.raises(ValueError, match="make one: vitkit import timm:vit_tiny --out DIR"):
        pretrained(["--pretrained", "timm:vit_tiny"])


def test_a_run_is_told_where_its_model_is(tmp_path: Path):
    (tmp_path / "model").mkdir()
    for place in (tmp_path, tmp_path / "model"):
        (place / "config.yaml").write_text("trainer: {accelerator: auto}")
    with pytest.raises(ValueError, match=f"got pretrained={tmp_path}; try {tmp_path}/model"):
        pretrained(["--pretrained", str(tmp_path)])
