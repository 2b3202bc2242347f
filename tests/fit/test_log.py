import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pandas
import pytest
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from lightning.pytorch.demos.boring_classes import BoringModel

from vitkit.fit.log import CSV, EpochCount, ProgressLines


def test_resumed_run_appends_without_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = CSV(path, 0)
    for step in range(4):
        log.log_metrics({"loss": 1 / (step + 3)}, step)
    log.log_metrics({"val/loss": 0.5}, 3)
    resumed = CSV(path, 2)
    for step in range(2, 4):
        resumed.log_metrics({"loss": 1 / (step + 3)}, step)
    resumed.log_metrics({"val/loss": 0.25}, 3)
    table = pandas.read_csv(path)
    assert table["step"].tolist() == [0, 1, 2, 3, 3]
    assert table["loss"].dropna().tolist() == [1 / 3, 1 / 4, 1 / 5, 1 / 6]
    assert table["val/loss"].dropna().tolist() == [0.25]


def test_new_run_replaces_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    CSV(path, 0).log_metrics({"loss": 1.0}, 0)
    CSV(path, 0).log_metrics({"loss": 2.0}, 0)
    assert pandas.read_csv(path)["loss"].tolist() == [2.0]


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar])
def test_bar_of_the_last_epoch_shows_the_number_of_epochs(
    bar: type[ProgressBar], trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", screen := StringIO())
    monkeypatch.setattr(screen, "isatty", lambda: True)
    options = {"limit_train_batches": 2, "limit_val_batches": 0, "enable_progress_bar": True}
    trainer(2, callbacks=[bar(), EpochCount()], **options).fit(BoringModel())
    assert re.findall(r"Epoch \d+(?:/\d+)?", screen.getvalue())[-1] == "Epoch 2/2"  # earlier ones may not be drawn


@pytest.mark.parametrize("rank", [0, 1])
def test_losses_of_a_line_are_dropped_on_every_rank(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    schedulers = [SimpleNamespace(scheduler=SimpleNamespace(last_epoch=1))]
    numbers = {"global_step": 1, "current_epoch": 0, "estimated_stepping_batches": 2}
    trainer = Mock(spec=Trainer, lr_scheduler_configs=schedulers, **numbers)
    lines = ProgressLines()
    lines.losses[1] = 0.5
    lines.print_line(trainer)
    assert not lines.losses
    assert ("loss 0.5" in capsys.readouterr().out) == (rank == 0)
