"""A run's folder is its identity: what is in it decides whether a command starts, goes on, or is refused."""

import shutil
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple, cast

import torch
import yaml
from jsonargparse import Namespace
from lightning.fabric.utilities.rank_zero import rank_zero_only

from vitkit.bundle.folder import save_config
from vitkit.bundle.old_names import update_names
from vitkit.data.data_module import Data
from vitkit.fit.initial_weights import unlinked
from vitkit.fit.run_config import CLI, leaves, plain
from vitkit.support.files import replacing
from vitkit.tasks.task import Task

# What there can be before last.ckpt.
STARTED = {"config.yaml", "model", "metrics.csv", "events", "best.ckpt", "reconstructions"}
# What may change when a run goes on: how long it is, how it is watched, how fast it is read and computed.
FREE = (
    *("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "trainer.log_every_n_steps"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.profiler"),
    *("data.workers", "checkpoint.every", "report.baselines", "threads", "patience", "compile"),
    *("checkpoint_blocks", "model.probe_every", "model.pictures_every"),
)


class Progress(NamedTuple):
    """Optimiser steps, whole epochs, and the validations since the best when the run stopped for want of a better."""

    steps: int = 0
    epochs: int = 0
    waited: int = 0

    def end(self, length: Namespace, patience: int | None) -> str | None:
        """Why there is nothing left to train, if so. Args: length: max_steps and max_epochs."""
        if self.waited and patience is not None and patience <= self.waited:
            return f"stopped after {self.waited} validations without a better score; a larger patience goes on"
        epochs = -1 if length.max_epochs is None else length.max_epochs
        if 0 <= length.max_steps <= self.steps or 0 <= epochs <= self.epochs:
            done = f"{self.epochs} epochs and {self.steps} steps"
            return f"is finished, after {done}; a larger trainer.max_epochs goes on"
        return None


def read_progress(checkpoint: Path) -> Progress:
    if not checkpoint.exists():
        return Progress()
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, UnpicklingError) as error:
        raise ValueError(
            f"{checkpoint} must be a whole checkpoint, got {str(error):.80}; remove it to start again"
        ) from error
    patience = [held for name, held in state["callbacks"].items() if name.startswith("Patience")]
    waited = max((held["wait_count"] for held in patience if held["wait_count"] >= held["patience"]), default=0)
    epochs = state["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    return Progress(state["global_step"], epochs, waited)


@rank_zero_only
def claim(cli: CLI) -> None:
    """Make the run folder this run's.

    Raises: ValueError if it is another's, or holds the same run under another config.
    """
    transient = ("config", "run", "fresh", "print_groups", "debug")
    config = {key: value for key, value in plain(cli.config).items() if key not in transient}
    config["model"]["init_args"]["model"] = unlinked(config["model"]["init_args"]["model"])
    data, task = cast(Data, cli.datamodule), cast(Task, cli.model)
    path = cli.run / "config.yaml"
    if cli.config.fresh and cli.run.exists() and any(cli.run.iterdir()):
        raise ValueError(f"run must be an empty folder to start fresh, got run={cli.run}")
    begun = (cli.run / "last.ckpt").exists()
    if begun and path.exists():
        _same(update_names(yaml.safe_load(path.read_text("utf-8"))), config)
    elif cli.run.exists():
        held = {file.name for file in cli.run.iterdir() if file.suffix != ".partial"}
        if held - STARTED or held and not {"config.yaml", "model"} <= held:
            raise ValueError(f"run must be a folder that is new, empty or of a run, got run={cli.run}")
        shutil.rmtree(cli.run / "model", ignore_errors=True)  # of a run that failed before it saved anything
    cli.run.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    several = bool(task.names) and data.source.several
    save_config(cli.run / "model", cli.portable, data.preprocess, task.names, several, task.tokenizer)


def _same(before: dict[str, Any], now: dict[str, Any]) -> None:
    old, new = dict(leaves(before)), dict(leaves(now))
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key) and key not in FREE]
    if changed:
        texts = [f"{key} (was {old.get(key)}, now {new.get(key)})" for key in changed]
        raise ValueError(f"run must go on as it began, got {', '.join(texts)}; choose another --run")
