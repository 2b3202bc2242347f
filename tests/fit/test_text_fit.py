"""`vitkit fit` without images: on texts, as bytes; see byte_texts.py."""

import csv
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.fit.run_config import CLI
from vitkit.models import TextTower

ROOT = Path(__file__).parents[2]
SHORT = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--model.schedule.warmup=0")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let class paths name the classes of byte_texts.py, in the processes that a test starts too."""
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", str(ROOT))]))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A causal tower of one block, with dropout, over windows of eight bytes: 9 steps an epoch."""
    residual = {"class_path": "vitkit.nn.PreNorm", "init_args": {"dropout": 0.1}}
    encoder = {"dim": 32, "depth": 1, "heads": 2, "causal": True, "residual": residual}
    model = {
        "class_path": "vitkit.models.TextTower",
        "init_args": {
            "vocabulary": 257,
            "context": 9,
            "outputs": 256,
            "pool": {"class_path": "vitkit.nn.EndOfText", "init_args": {"end": 256}},
            "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": encoder},
        },
    }
    schedule = {"class_path": "vitkit.optim.WarmupCosine", "init_args": {"warmup": 5}}
    task = {"lr": 5e-3, "schedule": schedule, "model": model}
    trainer = {"max_epochs": 3, "gradient_clip_val": 1.0, "enable_progress_bar": False, "accelerator": "cpu"}
    content = {
        "model": {"class_path": "byte_texts.NextByte", "init_args": task},
        "data": {"class_path": "byte_texts.Texts", "init_args": {"context": 8}},
        "trainer": {**trainer, "precision": "32-true"},
        "checkpoint": {"every": 4},
        "threads": 1,
    }
    path = tmp_path / "bytes.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def fit(config: Path, run: Path, *options: str) -> int:
    return main(["fit", "--config", str(config), "--run", str(run), *options])


def command(config: Path, run: Path, *options: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), "fit", f"--config={config}", f"--run={run}", *options]


def load_metrics(run: Path) -> dict[str, list[float]]:
    """Return the columns of metrics.csv, nan where a row has no such value."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    return {name: [float(row[name] or "nan") for row in rows] for name in rows[0]}


def load_report(run: Path) -> dict[str, Any]:
    return json.loads((run / "report.json").read_text())


def equal(one: Any, two: Any) -> bool:
    """Return whether two checkpoints are equal, bit for bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    return one == two


def test_text_model_beats_the_entropy_of_single_bytes(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """4.05 bits a byte after 72 steps, beside 4.71; and what is written speaks of texts."""
    run = tmp_path / "run"
    assert fit(config, run, "--trainer.max_epochs=8") == 0
    report, out = load_report(run), capsys.readouterr().out
    assert -report["score"] < report["single_bytes"] - 0.4
    assert (report["unit"], report["texts"]) == ("texts", 10) and "pictures" not in report
    assert "bits per byte of 10 texts held out" in out and re.search(r"\d texts/s\n", out) and "picture" not in out
    names = {path.name for path in (run / "model").iterdir()}
    assert names == {"config.yaml", "classes.json", "model.safetensors", "text.json"}
    bundle = open_model(run / "model")
    assert isinstance(bundle.model, TextTower) and bundle.preprocess is None and bundle.tokenizer is not None
    assert bundle.tokenizer.context == 9
    assert bundle.model(torch.tensor([[*b"assert", 256]])).shape == (1, 256)
    assert "current_model_state" in torch.load(run / "last.ckpt", weights_only=True)  # beside the average


@pytest.mark.soak
def test_killed_run_on_texts_resumes_bit_for_bit(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the second of three epochs of 35 steps, with workers, and resumed without them.

    Weights, average, optimiser, schedule, generators, metrics.
    """
    assert fit(config, tmp_path / "whole", "--data.batch=2") == 0
    run = tmp_path / "killed"
    metrics = run / "metrics.csv"
    with subprocess.Popen(
        command(config, run, "--data.batch=2", "--data.workers=2"), stdout=subprocess.DEVNULL
    ) as process:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 45:
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
    assert torch.load(run / "last.ckpt", weights_only=True)["global_step"] % 35 != 0
    capsys.readouterr()
    assert fit(config, run, "--data.batch=2") == 0
    assert "resuming" in capsys.readouterr().out
    assert metrics.read_text() == (tmp_path / "whole" / "metrics.csv").read_text()
    for name in ("last.ckpt", "best.ckpt"):
        whole, resumed = (torch.load(folder / name, weights_only=True) for folder in (tmp_path / "whole", run))
        assert equal(resumed, whole)


@pytest.mark.soak
def test_two_processes_on_texts_equal_one(config: Path, tmp_path: Path) -> None:
    """Of 69 texts in global batches of 8, whose windows the ranks share unequally, and 10 held out."""
    still = "--model.model.encoder.residual.dropout=0"  # which ranks draw apart
    watch = "--trainer.callbacks=[byte_texts.Gradients]"
    options = (still, watch, "--trainer.precision=64-true", "--trainer.max_epochs=1", "--ema.decay=0")
    assert fit(config, tmp_path / "one", *options) == 0
    ranks = ("--config", str(ROOT / "configs" / "ddp.yaml"), "--trainer.devices=2", "--data.batch=4")
    subprocess.run(command(config, tmp_path / "two", *options, *ranks), check=True, timeout=200)
    one, two = load_metrics(tmp_path / "one"), load_metrics(tmp_path / "two")
    assert len(one["step"]) == 10  # nine steps and a validation
    assert_close(two, one, rtol=1e-6, atol=0, equal_nan=True)  # what Lightning logs is float32
    steps = [torch.load(tmp_path / name / "gradients.pt", weights_only=True) for name in ("two", "one")]
    assert len(steps[1]) == 9
    assert_close(*steps, rtol=1e-9, atol=1e-12)
    weights = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("two", "one"))
    assert_close(*weights, rtol=1e-7, atol=1e-9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine texts: of the two held out one is in training too, and one in training is shorter than a window."""
    (tmp_path / "texts").mkdir()
    for number in range(9):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text number {number} is about {number} things\n")
    (tmp_path / "texts" / "8.txt").write_bytes((tmp_path / "texts" / "3.txt").read_bytes())
    (tmp_path / "texts" / "5.txt").write_text("short")
    return tmp_path / "texts"


def test_duplicate_and_unreadable_texts_are_reported(
    config: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(config, run, f"--data.train={folder}", "--trainer.max_epochs=1", "--model.schedule.warmup=0") == 0
    out, error = capsys.readouterr()
    example = f"such as {folder}/3.txt = {folder}/8.txt; the score on it is no evidence"
    assert f"1 of 2 validation texts is also in training, {example}" in out
    assert f"texts could not be read; all are in {run}/unreadable.txt\n" in error
    assert (run / "unreadable.txt").read_text() == f"text must be longer than 8 bytes, got {folder}/5.txt\n"
    report = load_report(run)
    assert (report["texts"], report["unreadable"]) == (2, 1)


def test_nonfinite_loss_names_the_texts(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(config, tmp_path / "run", *SHORT, "--model.lr=1e38", "--trainer.gradient_clip_val=null") == 1
    err = capsys.readouterr().err
    assert "loss and gradient must be finite" in err and len(re.findall(r"topics\[\S+]", err)) == 8


def test_patience_stops_a_run_on_texts(config: Path, tmp_path: Path) -> None:
    still = ("--model.lr=0", "--trainer.limit_train_batches=2", "--trainer.max_epochs=9", "--ema.decay=0")
    assert fit(config, tmp_path / "run", *still, "--patience=2") == 0
    assert load_report(tmp_path / "run")["epochs"] == 3


def test_groups_of_a_text_model_are_printed(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(config, tmp_path / "run", "--print_groups", "--model.layer_decay=0.5") == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["model.head.weight"][-1] == "0.005" and lines["model.embed.tokens.weight"][-1] == "0.00125"
    assert not (tmp_path / "run").exists()


def test_outputs_of_a_text_model_come_from_the_config(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its outputs, which are the classes of images: kept in the run's config, and compared when it goes on."""
    run = tmp_path / "run"
    assert fit(config, run, *SHORT) == 0
    for path, keys in (("config.yaml", ("model", "init_args", "model")), ("model/config.yaml", ())):
        content = yaml.safe_load((run / path).read_text())
        for key in keys:
            content = content[key]
        assert content["init_args"]["outputs"] == 256
    assert fit(config, run, *SHORT, "--model.model.outputs=300") == 1
    assert "model.model.outputs (was 256, now 300)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model=vitkit.tasks.classify.Classify",), "data must hold images, got Texts, which holds texts"),
        (("--model=vitkit.tasks.contrast.Contrast",), "must be a vitkit.models.CLIP, got TextTower"),
        (
            ("--model.model=vitkit.models.ViT", "--model.model.image_size=[8, 8]", "--model.model.patch_size=[4, 4]"),
            "data must hold images for ViT, got Texts",
        ),
    ],
)
def test_texts_for_an_image_model_are_refused_in_one_line(
    options: tuple[str, ...], message: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(config, tmp_path / "run", *SHORT, *options) == 1
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_option_of_a_users_data_class_keeps_a_name_that_vitkit_has_moved(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`Pairs` has its `context` in a group now, and its old option is read."""
    cli = CLI([f"--config={config}", "--data.context=7"])
    assert cli.config.data.init_args.context == 7
    assert "note" not in capsys.readouterr().out
