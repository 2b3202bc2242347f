import io
import json
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image
from safetensors.torch import load_file
from torch.testing import assert_close

from vitkit.bench import epoch_runs, fit_epochs
from vitkit.bench.epoch_runs import SIDES, EndOfTurns, EpochRun, Turns, run_fit
from vitkit.bench.fit_epochs import Side, link_images, write_models
from vitkit.bench.vit_steps import build_peer, parse_shape
from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.fit.checkpoint import Checkpoint


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            image = Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8))
            image.save(tmp_path / "photos" / name / f"{number}.jpg")
    return tmp_path / "photos"


def make_tiny_run(folder: Path, epochs: int) -> EpochRun:
    return EpochRun(
        folder=str(folder),
        shape=parse_shape("ti/16@32"),
        classes=2,
        dtype="float32",
        device="cpu",
        threads=1,
        batch=4,
        workers=0,
        epochs=epochs,
        compiled=False,
    )


@pytest.mark.parametrize(("pictures", "count"), [(None, 8), (7, 4)])
def test_epoch_has_whole_batches(pictures: int | None, count: int, photos: Path, tmp_path: Path) -> None:
    assert link_images(str(photos), tmp_path / "images", pictures, batch=4) == (count, ("cat", "dog"))
    links = [*(tmp_path / "images").glob("*/*.jpg")]
    assert len({file.resolve() for file in links}) == count
    assert all(file.resolve().parent == photos / file.parent.name for file in links)


def test_both_sides_start_from_the_same_weights(tmp_path: Path) -> None:
    shape, image = parse_shape("ti/16@32"), torch.randn(2, 3, 32, 32)
    write_models(tmp_path, shape, ("cat", "dog"))
    peer = build_peer(shape, 2).eval()
    peer.load_state_dict(load_file(tmp_path / "timm.safetensors"))
    bundle = open_model(tmp_path / "model")
    model, preprocess, classes = bundle.model, bundle.preprocess, bundle.class_names
    with torch.inference_mode():
        assert_close(model(image), peer(image))
    assert (preprocess.size, classes) == ((32, 32), ("cat", "dog"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "11"], "at least a batch of images, got 10, batch=11"),
        (["--pictures", "0"], "pictures must be at least 1, got pictures=0"),
        (["--workers", "-1"], "workers must be at least 0, got workers=-1"),
    ],
)
def test_invalid_option_is_a_one_line_error_before_the_output(
    options: list[str], message: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--epoch", str(photos), "--device", "cpu", *options]) == 1
    out, error = capsys.readouterr()
    assert message in error and error.count("\n") == 1 and not out


def test_missing_folder_is_refused_before_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--epoch", str(tmp_path / "missing"), "--device", "cpu"]) == 1
    out, error = capsys.readouterr()
    assert "epoch must be a folder of class folders" in error and error.count("\n") == 1 and not out


def test_validation_and_checkpoints_are_not_timed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Recorder(Turns):
        def begin(self) -> None:
            super().begin()
            events.append("begin")

        def end(self) -> None:
            events.append("end")
            super().end()

        def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            events.append("validation")

    original_init = Checkpoint.__init__

    def init(checkpoint: Checkpoint, every: int = 1) -> None:  # by default after each step
        original_init(checkpoint, every)

    def save(checkpoint: Checkpoint, trainer: Trainer, saves: bool) -> None:
        events.extend(["checkpoint"] if saves else [])

    link_images(str(photos), tmp_path / "images", None, batch=4)
    write_models(tmp_path, parse_shape("ti/16@32"), ("cat", "dog"))
    monkeypatch.setattr(epoch_runs, "Turns", Recorder)
    monkeypatch.setattr(Checkpoint, "save_and_stop", save)
    monkeypatch.setattr(Checkpoint, "__init__", init)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    with (tmp_path / "answers").open("wb") as answers, suppress(EndOfTurns):
        run_fit(make_tiny_run(tmp_path, epochs=2), answers.fileno())
    assert events == ["begin", "end", "checkpoint"] * 2
    assert len((tmp_path / "answers").read_text().splitlines()) == 2


@pytest.mark.soak
@pytest.mark.slow
def test_failing_epoch_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with (
        Side("vitkit", make_tiny_run(tmp_path, epochs=1)) as side,
        pytest.raises(ValueError, match="an epoch of vitkit failed: .*model folder"),
    ):
        side.run_epoch()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("title", SIDES)
def test_side_ends_by_itself_with_its_workers(title: str, photos: Path, tmp_path: Path) -> None:
    link_images(str(photos), tmp_path / "images", None, batch=4)
    write_models(tmp_path, parse_shape("ti/16@32"), ("cat", "dog"))
    with Side(title, replace(make_tiny_run(tmp_path, epochs=2), workers=1)) as side:
        assert side.run_epoch() > 0  # then it waits for a second turn, which does not come
    assert side.process.returncode == 0, side.log.read_text()


@pytest.mark.slow
def test_side_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_epochs, "PATIENCE", 0)
    with Side("timm", make_tiny_run(tmp_path, epochs=1)) as side:
        pass
    assert side.process.returncode == -signal.SIGKILL


@pytest.mark.soak
@pytest.mark.slow
def test_row_of_epochs_of_fit_and_timm(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    options = ["--models", "ti/16@32", "--batch", "4", "--pairs", "1", "--threads", "1", "--workers", "1"]
    command = ["bench", "--epoch", str(photos), *options, "--dtype", "bf16-mixed", "--json", str(path)]
    assert main([*command, "--device", "cpu"]) == 0
    [row] = json.loads(path.read_text())["rows"]
    assert (row["step"], row["samples"], row["peer"]) == ("epoch", 8, "timm")
    ours, theirs = row["seconds"]
    assert row["speedup"]["pairs"] == [theirs / ours] and min(row["memory"]) > 1e8
