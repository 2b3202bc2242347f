"""The report of a run: a table, report.json and figures of its scores, speed and baselines."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from vitkit.data.data_module import Data
from vitkit.data.omissions import Omissions
from vitkit.evaluation.figures import draw_loss_curve
from vitkit.fit.checkpoint import Checkpoint, read_progress
from vitkit.fit.ema import EMA
from vitkit.fit.log import read_rows
from vitkit.losses.ranks import gather_objects
from vitkit.support.errors import format_count
from vitkit.support.files import write_json, write_text
from vitkit.tasks.task import RunSummary, Task

SHOWN = 10  # errors of unreadable samples that are printed


class Report(Callback):
    """Reports a run at its end.

    Args: baselines: also score methods without a network: of images 20-NN and a linear probe on pixels (scikit-learn),
        of texts n-grams and a compressor.
    """

    def __init__(self, baselines: bool = False) -> None:
        self.baselines = baselines
        self.samples = 0
        self.validation_seconds = 0.0
        self.started = time.perf_counter()
        self.steps = 0
        self.unreadable: dict[str, None] = {}  # an ordered set

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.perf_counter()
        self.steps = -trainer.global_step
        self.validation_seconds = 0.0  # without the sanity check

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.samples += len(batch.indices) * trainer.world_size
        self.unreadable |= dict.fromkeys(batch.skipped)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.unreadable |= dict.fromkeys(batch.skipped)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validation_seconds -= time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validation_seconds += time.perf_counter()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps += trainer.global_step
        if cast(Checkpoint, trainer.checkpoint_callback).is_final(trainer):
            self.write_report(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "validate":  # of the kept weights
            self.write_report(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": sorted({*gather_objects([*self.unreadable])})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.unreadable = dict.fromkeys(state_dict["skipped"])

    def write_report(self, trainer: Trainer, pl_module: LightningModule) -> None:
        unreadable, task = sorted({*gather_objects([*self.unreadable])}), cast(Task, pl_module)
        if not (trainer.is_global_zero and task.metrics):  # nothing was validated
            return
        run, checkpoint = Path(trainer.default_root_dir), cast(Checkpoint, trainer.checkpoint_callback)
        omissions = task.data.omissions
        omissions.unreadable += unreadable
        averaged = any(isinstance(callback, EMA) for callback in cast(Any, trainer).callbacks)
        effort = self.measure_effort(run)
        epoch, best = trainer.fit_loop.epoch_progress.current.ready, checkpoint.selects
        weights = f"best epoch ({epoch})" if best else "last epoch"
        summary = task.summarize(run, f"{weights}, averaged weights" if averaged else weights, self.baselines)
        if best:
            summary = summary._replace(title=f"{summary.title}\nthe epoch was selected on this set")
        metrics = {name.removeprefix("val/"): value for name, value in task.metrics.items()}
        report = {
            **{task.standard_names.get(name, name): value for name, value in metrics.items()},
            "kept": "best" if best else "last",
            "kept_epoch": epoch,
            "kept_step": trainer.global_step,
            "averaged": averaged,
            "best": checkpoint.best if math.isfinite(checkpoint.best) else None,
            "unit": task.data.unit,
            task.data.unit: task.validated,
            "unreadable": len(omissions.unreadable),
            "trained_on": task.data.trained_validation,
            **effort,
            **summary.numbers,
            **omissions.to_json(),
        }
        if rows := read_rows(run / "metrics.csv"):
            draw_loss_curve(rows, run / "curve.png")
        report_omissions(omissions, run / "unreadable.txt", task.data)
        write_json(run / "report.json", report)  # last, as it marks a finished run
        print(format_run_summary(summary, effort, task.data.item or task.data.unit), summary.next_commands, sep="\n")

    def measure_effort(self, run: Path) -> dict[str, float | int]:
        seconds, progress = time.perf_counter() - self.started, read_progress(run / "last.ckpt")
        return {
            "epochs": progress.epochs,
            "steps": progress.steps,
            "steps_since_resumed": self.steps,
            "seconds": round(seconds, 2),
            "samples_per_second": round(self.samples / (seconds - self.validation_seconds), 1),
        }


def report_omissions(omissions: Omissions, path: Path, data: Data) -> None:
    """Print the omissions, and write the errors of unreadable samples to a file."""
    if omissions.unreadable:
        write_text(path, "\n".join(omissions.unreadable) + "\n")
    total = len(data.training) + len(data.validation)
    omissions.report(total, data.unit, SHOWN, f"; all are in {path}")


def format_run_summary(summary: RunSummary, effort: Mapping[str, float | int], unit: str) -> str:
    epochs, steps = (format_count(int(effort[name]), name) for name in ("epochs", "steps"))
    if effort["steps_since_resumed"] < effort["steps"]:
        steps += f" ({effort['steps_since_resumed']:,} since resumed)"
    return "\n".join(
        [
            summary.title,
            *(f"{row:<40}{value:>8}".rstrip() for row, value in summary.rows),
            f"{epochs}, {steps}, {{seconds:.0f}} s, {{samples_per_second:,.0f}} {unit}/s".format(**effort),
        ]
    )
