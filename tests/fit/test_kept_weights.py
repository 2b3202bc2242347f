"""The weights in model/ are those of the report, whatever ends a run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from vitkit.cli import main
from vitkit.fit.log import read_rows

# Epochs of three steps at a rate that makes the first of them the best.
DECLINE = ("--model.base_lr=0.1", "--trainer.limit_train_batches=3", "--ema.decay=0.5", "--model.schedule.warmup=0")


def fit(config: Path, run: Path, *options: str) -> dict[str, Any]:
    """Run a config, and return the report."""
    assert main(["fit", "--config", str(config), "--run", str(run), *DECLINE, *options]) == 0
    return json.loads((run / "report.json").read_text())


def evaluate(run: Path) -> dict[str, Any]:
    folder = run / "evaluation"
    options = ("--fold", "0", "--device", "cpu", "--no-probe", "--out", str(folder))
    assert main(["evaluate", str(run / "model"), "digits", *options]) == 0
    return json.loads((folder / "report.json").read_text())


def assert_kept(run: Path, checkpoint: str) -> None:
    weights = {f"model.{name}": weight for name, weight in load_file(run / "model" / "model.safetensors").items()}
    assert_close(weights, dict(torch.load(run / checkpoint, weights_only=True)["state_dict"]), rtol=0, atol=0)


def test_report_is_that_of_the_model(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after the report was lost, and after another choice of the kept weights."""
    run = tmp_path / "run"
    last = fit(config, run)
    confusion = (run / "confusion.png").read_bytes()
    assert (last["kept"], last["kept_epoch"], last["kept_step"]) == ("last", 3, 9)
    assert last["best"] > last["top1"]
    assert_kept(run, "last.ckpt")
    measured = evaluate(run)
    figures = [name for name in measured.keys() & last.keys() if isinstance(measured[name], float)]
    assert len(figures) == 8
    assert {name: last[name] for name in figures} == pytest.approx({name: measured[name] for name in figures})
    assert confusion == (run / "evaluation" / "confusion.png").read_bytes()
    metrics = (run / "metrics.csv").read_text()

    best = fit(config, run, "--keep=best")
    assert (best["kept"], best["kept_epoch"], best["kept_step"]) == ("best", 1, 3)
    assert (best["epochs"], best["steps"]) == (3, 9)
    assert best["top1"] == best["best"] == last["best"]
    assert_kept(run, "best.ckpt")
    assert "pictures\nthe epoch was selected on this set\n" in capsys.readouterr().out
    assert (run / "metrics.csv").read_text() == metrics
    assert (run / "confusion.png").read_bytes() != confusion

    (run / "report.json").unlink()
    (run / "model" / "model.safetensors").unlink()
    again = fit(config, run)
    assert again["top1"] == last["top1"]
    assert_kept(run, "last.ckpt")
    assert (run / "confusion.png").read_bytes() == confusion


def test_best_weights_are_kept_and_reported(config: Path, tmp_path: Path) -> None:
    report = fit(config, tmp_path / "run", "--keep=best")
    assert (report["kept_step"], report["steps"]) == (3, 9)
    assert report["top1"] == report["best"]
    assert_kept(tmp_path / "run", "best.ckpt")
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.csv") if row["val/loss"]] == ["2", "5", "8"]


@pytest.mark.parametrize(
    "options",
    [
        ("--trainer.max_steps=7",),
        ("--trainer.limit_val_batches=0", "--keep=best"),  # nothing is selected
        ("--trainer.check_val_every_n_epoch=7",),
        ("--trainer.max_epochs=9", "--patience=1", "--keep=last"),
    ],
)
def test_last_weights_are_validated_and_kept(options: tuple[str, ...], config: Path, tmp_path: Path) -> None:
    report = fit(config, tmp_path / "run", *options)
    assert report["kept"] == "last" and report["kept_step"] == report["steps"]
    assert_kept(tmp_path / "run", "last.ckpt")
