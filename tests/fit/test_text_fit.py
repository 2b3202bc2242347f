"""`vitkit fit` without images: a decoder on texts, as bytes."""

import csv
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.fit.overfit import main as overfit
from vitkit.fit.run_config import CLI
from vitkit.models import TextDecoder

ROOT = Path(__file__).parents[2]
SHORT = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--model.schedule.warmup=0")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let class paths name the classes of gradients.py, in the processes that a test starts too."""
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", str(ROOT))]))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """The beginnings of 24 topics of the manual, of unequal lengths."""
    (tmp_path / "texts").mkdir()
    for number, name in enumerate(sorted(topics)[:24]):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(topics[name][: 40 + 12 * number], "utf-8")
    return tmp_path / "texts"


@pytest.fixture
def config(tmp_path: Path, texts: Path) -> Path:
    """A decoder of one block, with dropout, over windows of 16 bytes: 15 steps an epoch, the last one shorter."""
    residual = {"class_path": "vitkit.nn.PreNorm", "init_args": {"dropout": 0.1}}
    encoder = {"dim": 32, "depth": 1, "heads": 2, "causal": True, "residual": residual}
    model = {
        "class_path": "vitkit.models.TextDecoder",
        "init_args": {
            "vocabulary": 257,
            "context": 16,
            "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": encoder},
        },
    }
    schedule = {"class_path": "vitkit.optim.WarmupCosine", "init_args": {"warmup": 5}}
    task = {"lr": 5e-3, "schedule": schedule, "model": model}
    data = {"train": str(texts), "tokenizer": {"vocabulary": "bytes", "context": 16}, "batch": 16}
    trainer = {"max_epochs": 3, "gradient_clip_val": 1.0, "enable_progress_bar": False, "accelerator": "cpu"}
    content = {
        "model": {"class_path": "vitkit.tasks.language_modelling.LanguageModelling", "init_args": task},
        "data": {"class_path": "vitkit.data.corpus.Corpus", "init_args": data},
        "trainer": {**trainer, "precision": "32-true"},
        "checkpoint": {"every": 4},
        "threads": 1,
    }
    path = tmp_path / "texts.yaml"
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


def test_decoder_beats_the_bytes_alone(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what is written speaks of texts and windows of them."""
    run = tmp_path / "run"
    assert fit(config, run, "--trainer.max_epochs=8", "--report.baselines=true") == 0
    report, out = load_report(run), capsys.readouterr().out
    assert report["bits_per_byte"] < report["baselines"]["1-grams"] and report["score"] == -report["bits_per_byte"]
    assert {"6-grams", "xz -9e"} < report["baselines"].keys()
    assert (report["unit"], report["texts"]) == ("texts", 5) and "pictures" not in report
    assert "bits per byte of the validation set, 5 texts" in out and re.search(r"\d windows/s\n", out)
    assert "picture" not in out
    (sentence,) = report["worse_than_baselines"]
    assert sentence in out and "worse than" in sentence
    names = {path.name for path in (run / "model").iterdir()}
    assert names == {"config.yaml", "classes.json", "model.safetensors", "samples.safetensors", "text.json"}
    bundle = open_model(run / "model")
    assert isinstance(bundle.model, TextDecoder) and bundle.preprocess is None and bundle.tokenizer is not None
    assert "current_model_state" in torch.load(run / "last.ckpt", weights_only=True)  # beside the average
    steps = [int(step) for step in re.findall(r"^=== step (\d+) ===$", (run / "samples.txt").read_text(), re.MULTILINE)]
    assert len(steps) == 8 and steps == sorted(steps) and steps[-1] == report["steps"]


@pytest.mark.soak
def test_killed_run_on_texts_resumes_bit_for_bit(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the second of three epochs, with workers, and resumed without them.

    Weights, average, optimiser, schedule, generators, metrics, samples.
    """
    assert fit(config, tmp_path / "whole", "--data.batch=4") == 0
    run, steps = tmp_path / "killed", load_report(tmp_path / "whole")["steps"] // 3
    metrics = run / "metrics.csv"
    with subprocess.Popen(
        command(config, run, "--data.batch=4", "--data.workers=2"), stdout=subprocess.DEVNULL
    ) as process:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps + 12:
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
    assert torch.load(run / "last.ckpt", weights_only=True)["global_step"] % steps != 0
    capsys.readouterr()
    assert fit(config, run, "--data.batch=4") == 0
    assert "resuming" in capsys.readouterr().out
    for name in ("metrics.csv", "samples.txt"):
        assert (run / name).read_text() == (tmp_path / "whole" / name).read_text()
    for name in ("last.ckpt", "best.ckpt"):
        whole, resumed = (torch.load(folder / name, weights_only=True) for folder in (tmp_path / "whole", run))
        assert equal(resumed, whole)


def compare_runs(one: Path, two: Path, tolerance: float) -> None:
    """Compare the gradients of each step, and the weights."""
    steps = [torch.load(run / "gradients.pt", weights_only=True) for run in (two, one)]
    assert len(steps[1]) == load_report(one)["steps"] and len(steps[0]) == len(steps[1])
    assert_close(*steps, rtol=tolerance, atol=1e-12)
    weights = (load_file(run / "model" / "model.safetensors") for run in (two, one))
    assert_close(*weights, rtol=1e-7, atol=1e-9)


STILL = ("--model.model.encoder.residual.dropout=0",)  # which ranks and micro-batches draw apart
DOUBLE = ("--trainer.precision=64-true", "--trainer.max_epochs=1", "--ema.decay=0", "--model.sample_length=0")
WATCHED = (*STILL, *DOUBLE, "--trainer.callbacks=[gradients.Gradients]")


def test_accumulated_windows_equal_one_batch(config: Path, tmp_path: Path) -> None:
    """Four batches of four windows, of which the last holds fewer."""
    assert fit(config, tmp_path / "one", *WATCHED) == 0
    assert fit(config, tmp_path / "four", *WATCHED, "--data.batch=4", "--trainer.accumulate_grad_batches=4") == 0
    compare_runs(tmp_path / "one", tmp_path / "four", 1e-9)


@pytest.mark.soak
def test_two_processes_on_texts_equal_one(config: Path, tmp_path: Path) -> None:
    assert fit(config, tmp_path / "one", *WATCHED) == 0
    ranks = ("--config", str(ROOT / "configs" / "ddp.yaml"), "--trainer.devices=2", "--data.batch=8")
    subprocess.run(command(config, tmp_path / "two", *WATCHED, *ranks), check=True, timeout=200)
    one, two = load_metrics(tmp_path / "one"), load_metrics(tmp_path / "two")
    assert_close(two, one, rtol=1e-6, atol=0, equal_nan=True)  # what Lightning logs is float32
    compare_runs(tmp_path / "one", tmp_path / "two", 1e-9)


def test_duplicate_and_unreadable_texts_are_reported(
    config: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, val = tmp_path / "run", tmp_path / "val"
    val.mkdir()
    (val / "new.txt").write_text("a text that is in no other folder\n")
    (val / "old.txt").write_bytes((texts / "03.txt").read_bytes())
    (texts / "05.txt").write_bytes(b"\xff")
    assert fit(config, run, *SHORT, f"--data.val={val}") == 0
    out, error = capsys.readouterr()
    example = f"such as {texts}/03.txt = {val}/old.txt; the score on it is no evidence"
    assert f"1 of 2 validation texts is also in training, {example}" in out
    assert f"error: 1 of 25 texts could not be read; all are in {run}/unreadable.txt\n" in error
    assert (run / "unreadable.txt").read_text() == f"text must be in UTF-8, got byte 0xff at 0 in {texts}/05.txt\n"
    report = load_report(run)
    assert (report["texts"], report["unreadable"]) == (2, 1)


def test_nonfinite_loss_names_the_texts(
    config: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(config, tmp_path / "run", *SHORT, "--model.lr=1e38", "--trainer.gradient_clip_val=null") == 1
    err = capsys.readouterr().err
    assert "loss and gradient must be finite" in err and len(re.findall(rf"{texts}/\d\d\.txt", err)) == 16


def test_model_of_a_run_is_trained_further(
    config: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its folder alone, which names the task, the data and the tokenizer."""
    assert fit(config, tmp_path / "run", *SHORT) == 0
    options = [f"--pretrained={tmp_path / 'run' / 'model'}", f"--data.train={texts}", f"--run={tmp_path / 'next'}"]
    assert main(["fit", *options, "--model.lr=1e-3", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]) == 0
    first, last = load_report(tmp_path / "run"), load_report(tmp_path / "next")
    assert last["bits_per_byte"] < first["bits_per_byte"]


def test_debug_run_needs_seconds(config: Path, tmp_path: Path) -> None:
    assert fit(config, tmp_path / "run", "--debug") == 0
    assert load_report(tmp_path / "run-debug")["steps"] == 3


def test_batch_of_windows_is_overfitted(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(config), "--data.batch=4", "--model.label_smoothing=0.1", "--model.lr=2e-2"]
    assert overfit(arguments) == 0
    assert capsys.readouterr().out.startswith("ok: loss 5.")


def test_groups_of_a_decoder_are_printed(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(config, tmp_path / "run", "--print_groups", "--model.layer_decay=0.5") == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["model.embed.tokens.weight"][-1] == "0.00125"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model=vitkit.tasks.classify.Classify",), "data must hold images, got Corpus, which holds texts"),
        (("--model=vitkit.tasks.contrast.Contrast",), "must be a vitkit.models.CLIP, got TextDecoder"),
        (
            ("--model.model=vitkit.models.ViT", "--model.model.image_size=[8, 8]", "--model.model.patch_size=[4, 4]"),
            "model must be a vitkit.models.TextDecoder, got ViT",
        ),
        (
            ("--model.model.vocabulary=256",),
            "must be at least 257, the ids of vocabulary=bytes, got 256",
        ),
        (("--model.model.context=8",), "model.model.context must be that of data.tokenizer, 16, got 8"),
        (("--data.train=/dev/null/absent",), "source must be a folder"),
    ],
)
def test_what_does_not_suit_texts_is_refused_in_one_line(
    options: tuple[str, ...], message: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(config, tmp_path / "run", *SHORT, *options) == 1
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_option_of_a_users_data_class_keeps_a_name_that_vitkit_has_moved(
    config: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`Pairs` has its `context` in a group now, and its old option is read."""
    content = yaml.safe_load(config.read_text())
    content["data"] = {"class_path": "gradients.Letters", "init_args": {"train": str(texts)}}
    config.write_text(yaml.safe_dump(content))
    cli = CLI([f"--config={config}", "--data.context=7"])
    assert cli.config.data.init_args.context == 7
    assert "note" not in capsys.readouterr().out
