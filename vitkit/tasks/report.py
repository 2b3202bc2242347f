"""The end of a run as a table, report.json and confusion.png: what was reached, how fast, and what raw pixels give."""

import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jaxtyping import Int64
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from vitkit.data.baselines import Score, compare
from vitkit.data.sources import require
from vitkit.tasks.checkpoint import Checkpoint
from vitkit.tasks.classify import Classify
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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.perf_counter()
        self.steps = -trainer.global_step
        self.validating = 0.0  # without the sanity check

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.samples += len(batch.indices) * trainer.world_size

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

    def write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not (trainer.is_global_zero and isinstance(pl_module, Classify) and pl_module.confusion.numel()):
            return
        best = cast(Checkpoint, trainer.checkpoint_callback).best
        if math.isinf(best):  # nothing was validated but the sanity check
            return
        seconds = time.perf_counter() - self.started
        data, counts = pl_module.data, pl_module.confusion.cpu()
        scores = compare(data) if self.baselines else [majority(counts)]
        result = {
            "accuracy": (counts.trace() / counts.sum()).item(),
            "best": best,
            "pictures": int(counts.sum()),
            "epochs": cast(Any, trainer.fit_loop.epoch_progress.current).processed,
            "steps": trainer.global_step,
            "steps_since_resumed": self.steps,
            "seconds": round(seconds, 2),
            "samples_per_second": round(self.samples / (seconds - self.validating), 1),
            "baselines": {score.name: score.accuracy for score in scores},
        }
        run = Path(trainer.default_root_dir)
        draw(counts, data.names, run / "confusion.png")
        with replacing(run / "report.json") as beside:  # last: a run that has it is finished
            beside.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
        print(table(result))
        print(f"{run}/confusion.png shows what is taken for what; vitkit predict {run}/model PICTURES")


def majority(counts: Tensor) -> Score:
    return Score("most frequent class", (counts.sum(1).max() / counts.sum()).item())


def table(result: Mapping[str, Any]) -> str:
    """The accuracy to quote is that of the last epoch: the best was chosen on the pictures that it is measured on."""
    rows = [
        ("averaged weights, last epoch", result["accuracy"]),
        ("the best epoch, picked in hindsight", result["best"]),
    ]
    steps = f"{result['steps']:,} steps"
    if result["steps_since_resumed"] < result["steps"]:
        steps += f" ({result['steps_since_resumed']:,} since resumed)"
    lines = [f"{name:<40}{accuracy:>8.2%}" for name, accuracy in [*rows, *result["baselines"].items()]]
    return "\n".join(
        [
            "accuracy on {pictures:,} pictures held out".format(**result),
            *lines,
            f"{{epochs}} epochs, {steps}, {{seconds:.0f}} s, {{samples_per_second:,.0f}} pictures/s".format(**result),
        ]
    )


def draw(counts: Int64[Tensor, "C C"], names: Sequence[str], path: Path) -> None:
    """Counts of labels (rows) by predictions; the colour is the share of its row."""
    from matplotlib.figure import Figure  # half a second, and only now

    side = 2.5 + 0.4 * len(names)  # inches
    figure = Figure((side, side), layout="constrained")
    axes = figure.subplots()
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    for row, column in counts.nonzero().tolist():
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, str(counts[row, column].item()), ha="center", va="center", color=colour, fontsize=8)
    # A name is text, also where it holds $.
    axes.set_xticks(range(len(names)), names, rotation="vertical", parse_math=False)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set(xlabel="predicted", ylabel="label")
    with warnings.catch_warnings(), replacing(path) as beside:
        warnings.simplefilter("ignore")  # names in a script that the font lacks are drawn as boxes
        figure.savefig(beside, format="png", dpi=120)
