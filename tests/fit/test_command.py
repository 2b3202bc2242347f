import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor

from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.fit.log import read_rows
from vitkit.fit.run_config import choose_precision
from vitkit.fit.run_folder import list_entries
from vitkit.nn.cores import has_fast_bfloat16
from vitkit.optim import WarmupCosine
from vitkit.support.folder_lock import lock_folder
from vitkit.tasks.classify import Classify

ANOTHER = "choose another --run, which --pretrained may start from the model/ of this one"
ROOT = Path(__file__).parents[2]
SHORT = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1"]
SHORT += ["--model.schedule.warmup=0"]


def fit(config: Path, run: Path, *options: str) -> int:
    return main(["fit", "--config", str(config), "--run", str(run), *options])


def is_equal(one: Any, two: Any) -> bool:
    """Return whether two checkpoints are equal, bit for bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(is_equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(is_equal, one, two))
    return one == two


def kill_run(config: Path, run: Path, rows: int, *options: str) -> None:
    """Start a run, and kill it when so many steps are logged."""
    command = [sys.executable, ROOT / "train.py", "fit", "--config", config, "--run", run, *options]
    metrics = run / "metrics.csv"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < rows:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()


def test_second_fit_in_a_run_folder_is_refused_until_the_first_ends(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kill leaves a worker process, which shares the lock for some seconds, and the file of the lock."""
    run, command = tmp_path / "run", [sys.executable, ROOT / "train.py", "fit", "--config", config, "--run"]
    options = ["--data.workers=1", "--trainer.max_epochs=900"]
    with subprocess.Popen([*command, run, *options], stdout=subprocess.DEVNULL) as process:
        while not (run / "metrics.csv").exists():
            assert process.poll() is None
            time.sleep(0.01)
        assert fit(config, run, "--trainer.max_epochs=1") == 1
        err = capsys.readouterr().err
        process.kill()
    assert f"run must have one writer at a time, got run={run}, locked by process {process.pid} on " in err
    assert "max_epochs: 900" in (run / "config.yaml").read_text()
    assert fit(config, run, "--trainer.max_epochs=1") == 0


def test_debug_run_is_refused_while_its_folder_is_locked(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run-debug"
    folder.mkdir()
    with lock_folder(folder, "run"):
        assert fit(config, tmp_path / "run", "--debug") == 1
    assert f"got run={folder}, locked by process {os.getpid()} on " in capsys.readouterr().err


def test_killed_run_resumes_bit_for_bit(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kill in the second of three epochs keeps weights, average, optimiser, schedule, generators and metrics.

    Blocks may be recomputed only after the kill.
    """
    assert fit(config, tmp_path / "whole") == 0
    whole = {name: torch.load(tmp_path / "whole" / f"{name}.ckpt", weights_only=True) for name in ("last", "best")}
    run = tmp_path / "run"
    kill_run(config, run, 40, "--data.workers=2")
    assert torch.load(run / "last.ckpt", weights_only=True)["global_step"] % 30 != 0
    capsys.readouterr()
    assert fit(config, run, "--data.workers=2", "--checkpoint_blocks") == 0
    assert "resuming" in capsys.readouterr().out
    assert (run / "metrics.csv").read_text() == (tmp_path / "whole" / "metrics.csv").read_text()
    for name, checkpoint in whole.items():
        assert is_equal(torch.load(run / f"{name}.ckpt", weights_only=True), checkpoint)


def test_run_folder_has_the_files_of_the_readme(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(config, run, *SHORT, "--report.baselines=true") == 0
    files = {"config.yaml", "last.ckpt", "best.ckpt", "metrics.csv", "events", "report.json", "model"}
    files |= {"confusion.png", "curve.png"}
    assert list_entries(run).keys() == files
    report = json.loads((run / "report.json").read_text())
    assert list(report["baselines"]) == ["most frequent class", "20-NN on pixels", "linear probe on pixels"]
    bundle = open_model(run / "model")
    assert bundle.class_names == tuple("0123456789")
    assert bundle.model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    out = capsys.readouterr().out
    assert "precision = 32-true" in out and "exports to: " in out and "20-NN on pixels" in out

    assert fit(run / "config.yaml", run, "--trainer.log_every_n_steps=5") == 0
    assert "is finished after 1 epoch and 2 steps; raise trainer.max_epochs to resume" in capsys.readouterr().out
    (run / "report.json").unlink()  # killed between the last checkpoint and the report
    assert fit(config, run, *SHORT, "--report.baselines=true") == 0
    again = json.loads((run / "report.json").read_text())
    assert [again[key] for key in ("top1", "best", "epochs", "steps", "baselines")] == [
        report[key] for key in ("top1", "best", "epochs", "steps", "baselines")
    ]
    assert fit(config, run, *SHORT, "--trainer.max_epochs=2") == 0
    assert "resuming" in capsys.readouterr().out
    assert (run / "metrics.csv").read_text().count("\n") == 7  # a header, two steps and a validation in each epoch

    assert fit(config, run, *SHORT, "--data.batch=32", "--ema.decay=0.5") == 1
    changed = "data.batch (was 48, now 32), ema.decay (was 0.999, now 0.5)"
    assert capsys.readouterr().err == f"error: run must go on as it began, got {changed}; {ANOTHER}\n"
    assert fit(config, run, *SHORT, "--fresh") == 1
    assert capsys.readouterr().err == f"error: run must be an empty folder to start fresh, got run={run}\n"
    assert fit(config, tmp_path, *SHORT) == 1
    assert "must be a folder that is new, empty or of a run" in capsys.readouterr().err


def test_options_override_overlays(config: Path, tmp_path: Path) -> None:
    overlay, run = tmp_path / "overlay.yaml", tmp_path / "run"
    small = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 1, "heads": 2}}
    overlay.write_text(
        yaml.safe_dump(
            {"model": {"init_args": {"model": {"init_args": {"encoder": small}}}}, "trainer": {"max_epochs": 1}}
        )
    )
    assert fit(config, run, "--config", str(overlay), "--model.model.encoder.dim=16", "--model.base_lr=1e-3") == 0
    task = yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]
    encoder = task["model"]["init_args"]["encoder"]["init_args"]
    assert (encoder["dim"], encoder["depth"], encoder["drop_path"]) == (16, 1, 0.2)
    assert (task["base_lr"], task["label_smoothing"]) == (1e-3, 0.1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--trainer.max_epoch=3", "there is no option trainer.max_epoch; did you mean trainer.max_epochs?"),
        ("--model.label_smothing=0.1", "model: there is no option label_smothing; did you mean label_smoothing?"),
        ("--model.learning_rate=1e-3", "model: there is no option learning_rate; did you mean lr?"),
        ("--model.model.encoder.depht=3", "model.model.encoder: there is no option depht; did you mean depth?"),
        ("--model.model.encoder.depth=x", "model.model.encoder.depth: must be int, got x"),
        ("--model.base_lr=fast", "model.base_lr: must be float or NoneType, got fast"),
        ("--model.optimizer.lr=1", "model.optimizer: there is no option lr"),
        ("--model.model=vitkit.models.VIT", "model.model: module 'vitkit.models' has no attribute 'VIT'; did you mean"),
        ("--model.model.outputs=10", "model.model.outputs must be left out: it follows from data.num_classes"),
        ("--config=missing.yaml", "config: File does not exist"),
    ],
)  # fmt: skip
def test_misspelt_option_is_refused_in_one_line(
    option: str, message: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        fit(config, tmp_path / "run", option)
    err = capsys.readouterr().err
    assert stopped.value.code == 2
    assert err.startswith(f"error: {message}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.model.patch_size=[3, 3]", "image_size must be a multiple of patch_size"),
        ("--model.label_smoothing=1", "label_smoothing must be at least 0 and below 1, got label_smoothing=1"),
        ("--model.lr=0.1", "one of lr and base_lr must be given, and not both"),
        ("--data.train=digit", "did you mean digits?"),
        ("--trainer.precision=16-mixed", "trainer.precision must have the range of float32, got 16-mixed"),
    ],
)
def test_invalid_option_is_refused_in_one_line(
    option: str, message: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(config, tmp_path / "run", option) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_image_is_an_error_in_one_line(
    workers: int, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (9, 9)).save(tmp_path / "pets" / name / f"{number}.png")
    broken = tmp_path / "pets" / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:40])
    options = [f"--data.train={tmp_path / 'pets'}", "--data.folds=3", f"--data.workers={workers}"]
    assert fit(config, tmp_path / "run", *options, "--model.schedule.warmup=0", "--threads=1") == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and str(broken) in err and err.count("\n") == 1


def test_two_processes_train_into_one_run_folder(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one process goes on, on request."""
    options = ["--trainer.devices=2", "--trainer.strategy=ddp", *SHORT, "--trainer.limit_val_batches=1.0"]
    command = [sys.executable, ROOT / "train.py", "fit", "--config", config, "--run", tmp_path / "run", *options]
    subprocess.run(command, check=True, timeout=200)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["steps"], report["pictures"]) == (2, 360)
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") == 4

    options = [*SHORT, "--trainer.limit_val_batches=1.0", "--trainer.max_epochs=2", "--resume_with_changes"]
    assert fit(config, tmp_path / "run", *options) == 0
    assert "note: from epoch 2 on, trainer.devices (was 2, now auto)\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "report.json").read_text())["steps"] == 4


def test_bfloat16_is_the_default_if_it_is_fast():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_precision("auto") == ("bf16-mixed" if has_fast_bfloat16(device) else "32-true")
    assert choose_precision("mps") == "32-true"


def test_truncated_checkpoint_is_refused_in_one_line(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(config, tmp_path / "run", *SHORT) == 0
    last = tmp_path / "run" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    capsys.readouterr()
    assert fit(config, tmp_path / "run", *SHORT) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {last} must be a complete checkpoint") and err.count("\n") == 1


def test_run_that_failed_before_a_checkpoint_can_restart(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(config, run, *SHORT, "--model.base_lr=1e38", "--model.model.encoder.depth=1") == 1
    err = capsys.readouterr().err
    assert "nothing was saved yet" in err
    assert fit(config, run, *SHORT) == 0
    assert open_model(run / "model").model.get_submodule("encoder.blocks.1")
    assert (run / "model" / "model.safetensors").stat().st_mode == (run / "config.yaml").stat().st_mode


def test_folder_that_is_no_run_is_refused(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for names in (
        ["config.yaml"],
        ["config.yaml", "preprocess.json", "model.safetensors"],
        ["config.yaml", "model", "x"],
    ):
        folder = tmp_path / names[-1]
        folder.mkdir()
        for name in names:
            (folder / name).write_text("mine")
        assert fit(config, folder, *SHORT) == 1
        error = capsys.readouterr().err
        assert "run must be a folder that is new, empty or of a run" in error
        assert f"holds {', '.join(sorted(names))}; choose" in error
        assert {file.name: file.read_text() for file in folder.iterdir()} == dict.fromkeys(names, "mine")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--trainer.max_epochs=-3", "trainer: "),
        ("--trainer.max_epochs=-1", "trainer.max_epochs or trainer.max_steps must be given"),
        ("--model.schedule.warmup=-1", "warmup must be at least 0"),
        ("--threads=0", "threads must be at least 1, got threads=0"),
        ("--trainer.logger=false", "trainer.logger must be one logger or several"),
        ("--trainer.log_every_n_steps=-1", "trainer.log_every_n_steps must be at least 0"),
    ],
)
def test_option_is_refused_in_one_line_before_anything_is_written(
    option: str, message: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(config, tmp_path / "run", *SHORT[1:], option) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}") and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_recipe_is_shortened_by_its_epochs_alone(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warm-up longer than the run is shortened; the last epoch is validated though it is not the fourth."""
    run, options = tmp_path / "run", ["--trainer.check_val_every_n_epoch=4", "--trainer.limit_train_batches=10"]
    options += ["--model.schedule.warmup=100", "--trainer.log_every_n_steps=0"]
    assert fit(config, run, *options, "--trainer.max_epochs=2") == 0
    out = capsys.readouterr().out
    assert "note: warmup is 2, a tenth of the 20 steps of the run, not 100\n" in out
    assert json.loads((run / "report.json").read_text())["kept_step"] == 20
    assert [row["step"] for row in read_rows(run / "metrics.csv")] == ["20"]


def test_resume_with_another_batch_continues_the_schedule_at_the_same_epoch(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On request, and between two epochs."""
    run, options = tmp_path / "run", ["--trainer.limit_val_batches=1", "--data.batch=240", "--checkpoint.every=1"]
    assert fit(config, run, *options, "--trainer.max_epochs=4", "--trainer.max_steps=12") == 0  # of 6 in an epoch
    options += ["--trainer.max_epochs=4", "--data.batch=120", "--trainer.accumulate_grad_batches=3"]
    capsys.readouterr()
    assert fit(config, run, *options) == 1
    changed = "data.batch (was 240, now 120), trainer.accumulate_grad_batches (was 1, now 3)"
    message = f"error: run must go on as it began, got {changed}; add --resume_with_changes between two epochs, or "
    assert capsys.readouterr().err == f"{message}{ANOTHER}\n"
    assert fit(config, run, *options, "--resume_with_changes") == 0
    out = capsys.readouterr().out
    assert "note: from epoch 3 on, data.batch (was 240, now 120)\n" in out
    assert "epoch 4, step 20 of 20 [" in out
    peak, schedule = 1e-2 * 120 * 3 / 256, WarmupCosine(16, warmup=5)
    rates = {int(row["step"]): float(row["lr"]) for row in read_rows(run / "metrics.csv") if row["lr"]}
    assert {step: rates[step] for step in range(12, 20)} == pytest.approx(
        {step: peak * schedule(step - 12 + 8) for step in range(12, 20)}
    )
    assert [rates[step] for step in range(12)] == pytest.approx(
        [1e-2 * 240 / 256 * WarmupCosine(12, warmup=5)(step) for step in range(12)]
    )


def test_own_loggers_log_beside_those_of_every_run(config: Path, tmp_path: Path) -> None:
    """They may change when the run resumes."""
    run, options = tmp_path / "run", [*SHORT, "--trainer.logger=lightning.pytorch.loggers.CSVLogger"]
    for epochs in (1, 2):
        folder = tmp_path / f"log{epochs}"
        more = [f"--trainer.logger.save_dir={folder}", f"--trainer.max_epochs={epochs}", "--trainer.logger.version=x"]
        assert fit(config, run, *options, *more) == 0
        (path,) = folder.rglob("metrics.csv")
        rows = [row for row in read_rows(run / "metrics.csv") if int(row["step"]) >= 2 * (epochs - 1)]
        for name in ("train/loss", "val/accuracy"):
            assert [row[name] for row in read_rows(path) if row[name]] == [row[name] for row in rows if row[name]] != []


@pytest.mark.soak
def test_interrupt_of_all_processes_of_a_terminal_stops_in_order(config: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches the workers too."""
    command = [sys.executable, ROOT / "train.py", "fit", "--config", config, "--run", tmp_path / "run"]
    metrics = tmp_path / "run" / "metrics.csv"
    # Background jobs of a shell, and their children, ignore the signal.
    handle_interrupt = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        [*command, "--data.workers=1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=handle_interrupt,
        start_new_session=True,
    ) as process:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 8:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert [line for line in err.splitlines() if line] == [
        "stopping after this step, or this validation; Ctrl-C again stops at once",
        "stopped; the same command resumes from the last checkpoint, if there is one",
    ]


@pytest.mark.parametrize(
    ("batch", "step", "number", "status"), [(4, 3, signal.SIGINT, 130), (7, 4, signal.SIGTERM, 143)]
)
def test_signal_stops_between_two_steps_and_the_run_resumes_exactly(
    number: signal.Signals,
    status: int,
    batch: int,
    step: int,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Here within accumulated gradients, and in the last batch of an epoch, which is validated first."""
    options = ["--trainer.max_epochs=2", "--trainer.limit_train_batches=8", "--trainer.limit_val_batches=1"]
    options += ["--trainer.accumulate_grad_batches=2", "--checkpoint.every=1000"]
    assert fit(config, tmp_path / "whole", *options) == 0
    train_on = Classify.training_step

    def send_signal(task: Classify, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == stop_at and task.current_epoch == 0:
            signal.raise_signal(number)
        return train_on(task, batch, batch_idx)

    stop_at, handler = batch, signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Classify, "training_step", send_signal)
            assert fit(config, tmp_path / "run", *options) == status
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, handler)
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == step
    capsys.readouterr()
    if step == 3:
        assert fit(config, tmp_path / "run", *options, "--data.batch=24", "--resume_with_changes") == 1
        assert "run must be between two epochs to resume with changes, got data.batch" in capsys.readouterr().err
    assert fit(config, tmp_path / "run", *options) == 0
    whole, resumed = (torch.load(tmp_path / name / "last.ckpt", weights_only=True) for name in ("whole", "run"))
    assert is_equal(resumed, whole)
    assert (tmp_path / "run" / "metrics.csv").read_text() == (tmp_path / "whole" / "metrics.csv").read_text()


def test_output_to_a_file_has_lines_and_no_bar(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, options = tmp_path / "run", ["--trainer.enable_progress_bar=true", "--trainer.limit_train_batches=3"]
    assert fit(config, run, *options, "--trainer.max_epochs=2", "--model.schedule.warmup=0") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert f"{run}: 1,437 pictures of 10 classes to train on, 360 to validate on, 6 steps" in lines
    pattern = r"epoch \d, step [36] of 6 \[\d\d:\d\d<\d\d:\d\d\]: loss [\d.]+, val/"
    epochs = [line for line in lines if re.match(pattern, line)]
    assert [line[:22] for line in epochs] == ["epoch 1, step 3 of 6 [", "epoch 2, step 6 of 6 ["]
    losses = [float(row["train/loss"]) for row in read_rows(run / "metrics.csv") if row.get("train/loss")]
    assert f": loss {sum(losses[:3]) / 3:.4g}, " in epochs[0]
    assert "it/s" not in out + err and "\r" not in out + err

    monkeypatch.setattr("vitkit.fit.log.INTERVAL", 0.0)
    assert fit(config, run, *options, "--trainer.max_epochs=3", "--model.schedule.warmup=0") == 0
    assert [line.split(" [")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")] == [
        f"epoch 3, step {step} of 9" for step in (7, 8, 9)
    ]
