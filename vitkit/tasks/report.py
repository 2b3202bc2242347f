"""The end of a run as a table, report.json and confusion.png: what was reached, how fast, and what raw pixels give."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from vitkit.data.baselines import Score, compare, frequencies
from vitkit.data.images import Images
from vitkit.data.sources import require
from vitkit.figures import confusion
from vitkit.tasks.averaging import EMA
from vitkit.tasks.checkpoint import Checkpoint
from vitkit.tasks.classify import Classify
from vitkit.tasks.task import gathered
from vitkit.weights import replacing


class Report(Callback):
    """Args: baselines: also fit 5 nearest neighbours and logistic regression to the pixels (scikit-learn)."""

    def __init__(self, baselines: bool = False) -> None:
        if baselines:
            require("sklearn", "report.baselines")  # now, not after hours of training
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
        skipped = sorted({*gathered([*self.skipped])})
        if not (trainer.is_global_zero and isinstance(pl_module, Classify) and pl_module.metrics):
            return
        best = cast(Checkpoint, trainer.checkpoint_callback).best
        if math.isinf(best):  # nothing was validated but the sanity check
            return
        seconds = time.perf_counter() - self.started
        data, name = pl_module.data, pl_module.score.removeprefix("val/")
        result = {
            **{name.removeprefix("val/"): value for name, value in pl_module.metrics.items()},
            "best": best,
            "averaged": any(isinstance(callback, EMA) for callback in cast(Any, trainer).callbacks),
            "pictures": pl_module.validated,
            "unreadable": len(skipped),
            "epochs": cast(Any, trainer.fit_loop.epoch_progress.current).processed,
            "steps": trainer.global_step,
            "steps_since_resumed": self.steps,
            "seconds": round(seconds, 2),
            "samples_per_second": round(self.samples / (seconds - self.validating), 1),
            "baselines": {score.name: score.accuracy for score in self.compare(data)},
        }
        run = Path(trainer.default_root_dir)
        if not data.source.several:
            confusion(pl_module.confusion.cpu(), data.names, run / "confusion.png")
        tell(skipped, run / "unreadable.txt")
        with replacing(run / "report.json") as beside:  # last: a run that has it is finished
            beside.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
        print(table(name, result))
        pictured = "" if data.source.several else f"{run}/confusion.png shows what is taken for what; "
        print(f"{pictured}vitkit predict {run}/model PICTURES")

    def compare(self, data: Images) -> list[Score]:
        return compare(data) if self.baselines else [frequencies(data)]


def tell(skipped: Sequence[str], path: Path) -> None:
    if skipped:
        with replacing(path) as beside:
            beside.write_text("\n".join(skipped) + "\n", "utf-8")
        more = f"\nand {len(skipped) - 10} more" if len(skipped) > 10 else ""
        print(f"{len(skipped)} pictures were left out; all are in {path}", *skipped[:10], sep="\n", end=f"{more}\n")


def table(name: str, result: Mapping[str, Any]) -> str:
    """The score to quote is that of the last epoch: the best was chosen on the pictures that it is measured on."""
    rows = [
        ("averaged weights, last epoch" if result["averaged"] else "last epoch", result[name]),
        *([("mean recall of the classes", result["recall"])] if "recall" in result else []),
        ("the best epoch, picked in hindsight", result["best"]),
    ]
    steps = f"{result['steps']:,} steps"
    if result["steps_since_resumed"] < result["steps"]:
        steps += f" ({result['steps_since_resumed']:,} since resumed)"
    lines = [f"{row:<40}{score:>8.2%}" for row, score in [*rows, *result["baselines"].items()]]
    return "\n".join(
        [
            f"{name} on {{pictures:,}} pictures held out".format(**result),
            *lines,
            f"{{epochs}} epochs, {steps}, {{seconds:.0f}} s, {{samples_per_second:,.0f}} pictures/s".format(**result),
        ]
    )
