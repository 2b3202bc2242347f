import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from jsonargparse import Namespace
from lightning.pytorch import Trainer
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from vitkit.data.images import Images
from vitkit.fit.checkpoint import AtomicIO, Checkpoint, Progress, read_progress
from vitkit.fit.ema import EMA
from vitkit.tasks.classify import Classify

WRITES = """
import sys
from itertools import count
import torch
from vitkit.fit.checkpoint import AtomicIO
for number in count():
    AtomicIO().save_checkpoint({"number": torch.full((10_000_000,), number)}, sys.argv[1])
"""


def test_kill_during_a_write_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    path, partial = tmp_path / "last.ckpt", tmp_path / ".last.ckpt.vitkit.partial"
    with subprocess.Popen([sys.executable, "-c", WRITES, path], cwd=Path(__file__).parents[2]) as process:
        while not (path.exists() and partial.exists() and partial.stat().st_size > 1_000_000):
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    assert partial.exists() and partial.stat().st_size < path.stat().st_size
    number = AtomicIO().load_checkpoint(path)["number"]
    assert len(number) == 10_000_000 and number.min() == number.max()


class Foreign:
    """A class that no checkpoint may hold."""


def test_damaged_checkpoint_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"xx")
    with pytest.raises(ValueError, match=f"choose another --run, from its weights: --pretrained {tmp_path}/model"):
        read_progress(tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    ("limits", "raised"),
    [((2, -1), "max_epochs"), ((9, 4), "max_steps"), ((2, 4), "max_epochs and trainer.max_steps"), ((9, -1), None)],
)
def test_end_of_a_run_names_the_limits_that_were_reached(limits: tuple[int, int], raised: str | None) -> None:
    length = Namespace(max_epochs=limits[0], max_steps=limits[1])
    reason = Progress(steps=4, epochs=2).describe_end(length, None)
    assert reason == (raised and f"is finished after 2 epochs and 4 steps; raise trainer.{raised} to resume")


def test_loading_executes_no_code(tmp_path: Path) -> None:
    torch.save(Foreign(), tmp_path / "foreign.ckpt")
    with pytest.raises(Exception, match="Weights only load failed"):
        AtomicIO().load_checkpoint(tmp_path / "foreign.ckpt", weights_only=False)


@pytest.mark.parametrize("keep", ["last", "best"])
def test_portable_weights_are_the_average_of_the_kept_epoch(
    keep: Literal["last", "best"],
    model: nn.Module,
    few: Callable[..., Images],
    trainer: Callable[..., Trainer],
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint(every=2)
    checkpoint.keep = keep
    fitted = trainer(4, callbacks=[EMA(0.5), checkpoint], plugins=[AtomicIO()], enable_checkpointing=True)
    fitted.fit(Classify(model, lr=0.2), datamodule=few(batch=5, validation=40))
    best, last = (torch.load(tmp_path / f"{name}.ckpt", weights_only=True) for name in ("best", "last"))
    portable = {f"model.{name}": weight for name, weight in load_file(tmp_path / "model/model.safetensors").items()}
    kept = {"last": last, "best": best}[keep]
    assert_close(portable, dict(kept["state_dict"]), rtol=0, atol=0)
    assert last["global_step"] == 20 and best["global_step"] < 20
    assert checkpoint.kept == kept["global_step"] and checkpoint.is_final(fitted) == (keep == "last")
    assert last["callbacks"]["Checkpoint"]["best"] == checkpoint.best


def test_best_checkpoint_is_not_the_last_after_a_decline(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    accuracies: list[float] = []

    class Declines(Classify):
        def on_validation_epoch_start(self) -> None:
            super().on_validation_epoch_start()
            if len(accuracies) >= 2:
                nn.init.zeros_(model.head.weight)

        def on_validation_epoch_end(self) -> None:
            super().on_validation_epoch_end()
            accuracies.append(float(self.trainer.callback_metrics["val/accuracy"]))

    fitted = trainer(4, callbacks=[Checkpoint()], plugins=[AtomicIO()], enable_checkpointing=True)
    fitted.fit(Declines(model, lr=0.02), datamodule=few(batch=3, validation=40))
    steps = [torch.load(tmp_path / f"{name}.ckpt", weights_only=True)["global_step"] for name in ("best", "last")]
    assert steps == [7 * (accuracies.index(max(accuracies)) + 1), 28] and steps[0] < 28
