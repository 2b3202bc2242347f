"""Logs of a run: metrics.csv and TensorBoard's event files in the run folder, lines where there is no progress bar."""

import csv
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from tqdm import tqdm

from vitkit.support.files import replace_file
from vitkit.tasks.task import say

INTERVAL = 60.0  # seconds between lines


def make_loggers(run: Path, step: int) -> list[Logger]:
    """Return loggers into the run folder from an optimiser step on. Later rows of an earlier process are removed."""
    # After Ctrl-C during a write TensorBoard's thread may sleep until its next flush, by default for two minutes.
    events = TensorBoardLogger(run, name="events", version="", purge_step=step, flush_secs=5)
    return [CSV(run / "metrics.csv", step), events]


class CSV(Logger):
    """Writes a row per call to disk at once. A resumed run appends, where Lightning's CSVLogger deletes."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__()
        self.path = path
        self.columns: list[str] = []
        self.write_rows(row for row in read_rows(path) if int(row["step"]) < step)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float | int], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        if row.keys() <= {*self.columns}:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)
        else:
            self.write_rows([*read_rows(self.path), row])

    @rank_zero_only
    def write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Rewrite the file, with a column for every name."""
        rows = list(rows)
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        with replace_file(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml is beside metrics.csv."""

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""


class ProgressLines(Callback):
    """Prints a line after each epoch, and each minute of a longer one, with the mean loss since the line before."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}  # by optimiser step
        self.validated = False
        self.first_step = 0
        self.started = self.printed = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.first_step, self.validated = trainer.global_step, False
        self.started = self.printed = time.monotonic()
        sys.stdout.flush()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if "loss" in (metrics := trainer.progress_bar_metrics):
            self.losses[trainer.global_step] = float(metrics["loss"])
        if time.monotonic() >= self.printed + INTERVAL and not trainer.is_last_batch:
            self.print_line(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.print_line(trainer)

    def print_line(self, trainer: Trainer) -> None:
        self.printed = time.monotonic()
        metrics = {"loss": sum(self.losses.values()) / len(self.losses)} if self.losses else {}
        if self.validated:
            metrics = {**trainer.progress_bar_metrics, **metrics}
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        # The schedule counts all steps as those of this command, which may differ in size.
        scheduler = cast(Any, trainer.lr_scheduler_configs[0].scheduler)
        step, steps_left = trainer.global_step, int(trainer.estimated_stepping_batches) - scheduler.last_epoch
        seconds = self.printed - self.started
        rest = seconds * steps_left / max(1, step - self.first_step)
        progress = f"epoch {trainer.current_epoch + 1}, step {step:,} of {step + steps_left:,}"
        times = f"[{tqdm.format_interval(seconds)}<{tqdm.format_interval(rest)}]"  # as in a bar: elapsed<remaining
        say(f"{progress} {times}: {numbers}", flush=True)
        self.losses.clear()
        self.validated = False


class EpochCount(Callback):
    """Writes the epochs into a progress bar, counted from 1: Lightning shows "Epoch 39" for the last of 40."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch, epochs = trainer.current_epoch + 1, trainer.max_epochs or -1
        title = f"Epoch {epoch}/{epochs}" if epochs > 0 else f"Epoch {epoch}"
        match trainer.progress_bar_callback:
            case TQDMProgressBar(train_progress_bar=bar):
                bar.set_description(title)
            case RichProgressBar(progress=progress, train_progress_bar_id=task) if progress and task is not None:
                progress.update(task, description=f"{title:<10}")  # as wide as "Validation"


def read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
