"""The end of a run as a table, report.json and pictures: what was reached, how fast, and what raw pixels give."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from vitkit.data.data_module import Data
from vitkit.data.omissions import Omissions
from vitkit.evaluation.figures import draw_loss_curve
from vitkit.fit.checkpoint import Checkpoint
from vitkit.fit.ema import EMA
from vitkit.fit.log import CSV
from vitkit.losses.ranks import gathered
from vitkit.support.extras import require_package
from vitkit.support.files import replace_file, write_json
from vitkit.tasks.task import RunSummary, Task

SHOWN = 10  # errors of samples that could not be read


class Report(Callback):
    """Args: baselines: also fit 20 nearest neighbours and a linear probe to the pixels (scikit-learn)."""

    def __init__(self, baselines: bool = False) -> None:
        if baselines:
            require_package("sklearn", "report.baselines")  # now, not after hours of training
        self.baselines = baselines
        self.samples = 0
        self.validating = 0.0
        self.started = time.perf_counter()
        self.steps = 0
        self.skipped: dict[str, None] = {}  # a set in order

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.perf_counter()
        self.steps = -trainer.global_step
        self.validating = 0.0  # without the sanity check

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.samples += len(batch.indices) * trainer.world_size
        self.skipped |= dict.fromkeys(batch.skipped)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.skipped |= dict.fromkeys(batch.skipped)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validating -= time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validating += time.perf_counter()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps += trainer.global_step
        self.write(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """A run that was killed between its last checkpoint and its report is only validated."""
        if stage == "validate":
            self.write(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": sorted({*gathered([*self.skipped])})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped = dict.fromkeys(state_dict["skipped"])

    def write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        skipped, task = sorted({*gathered([*self.skipped])}), cast(Task, pl_module)
        best = cast(Checkpoint, trainer.checkpoint_callback).best
        if not (trainer.is_global_zero and task.metrics) or math.isinf(best):  # nothing was validated
            return
        run = Path(trainer.default_root_dir)
        omissions = task.data.omissions
        omissions.unreadable += skipped
        averaged = any(isinstance(callback, EMA) for callback in cast(Any, trainer).callbacks)
        effort = self.effort(trainer)
        latest = "last epoch, averaged weights" if averaged else "last epoch"
        summary = task.summarize(run, latest, best, self.baselines)
        measured = {name.removeprefix("val/"): value for name, value in task.metrics.items()}
        result = {
            **{task.standard_names.get(name, name): value for name, value in measured.items()},
            "best": best,
            "averaged": averaged,
            "unit": task.data.unit,
            task.data.unit: task.validated,
            "unreadable": len(skipped),
            **effort,
            **summary.numbers,
            **omissions.to_json(),
        }
        for logger in trainer.loggers:
            if isinstance(logger, CSV):
                draw_loss_curve(logger.read(), run / "curve.png")
        report_omissions(omissions, run / "unreadable.txt", task.data)
        write_json(run / "report.json", result)  # last: a run that has it is finished
        print(format_summary(summary, effort, task.data.unit), summary.next_commands, sep="\n")

    def effort(self, trainer: Trainer) -> dict[str, float | int]:
        seconds = time.perf_counter() - self.started
        return {
            "epochs": cast(Any, trainer.fit_loop.epoch_progress.current).processed,
            "steps": trainer.global_step,
            "steps_since_resumed": self.steps,
            "seconds": round(seconds, 2),
            "samples_per_second": round(self.samples / (seconds - self.validating), 1),
        }


def report_omissions(omissions: Omissions, path: Path, data: Data) -> None:
    """Print what was left out, and list in a file what could not be read."""
    if omissions.unreadable:
        with replace_file(path) as beside:
            beside.write_text("\n".join(omissions.unreadable) + "\n", "utf-8")
    total = len(data.training) + len(data.validation)
    omissions.report(total, data.unit, SHOWN, f"; all are in {path}")


def format_summary(summary: RunSummary, effort: Mapping[str, float | int], unit: str) -> str:
    steps = f"{effort['steps']:,} steps"
    if effort["steps_since_resumed"] < effort["steps"]:
        steps += f" ({effort['steps_since_resumed']:,} since resumed)"
    return "\n".join(
        [
            summary.title,
            *(f"{row:<40}{value:>8}" for row, value in summary.rows),
            f"{{epochs}} epochs, {steps}, {{seconds:.0f}} s, {{samples_per_second:,.0f}} {unit}/s".format(**effort),
        ]
    )
