"""Checkpoints of a run: last.ckpt to resume from, best.ckpt, and the portable model of the best score."""

import math
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple, cast

import torch
from jsonargparse import Namespace
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer, callbacks

from vitkit.bundle.weights import save_weights
from vitkit.fit.ema import EMA
from vitkit.support.files import replace_file
from vitkit.tasks.task import Task


class AtomicIO(CheckpointIO):
    """Writes checkpoints atomically, so that a kill leaves the previous one. Loading executes no code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replace_file(Path(path)) as temporary:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:  # raised when the disk is full
                reason = str(error).splitlines()[0]
                raise OSError(f"{path} could not be written; is the disk full? ({reason})") from error

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        return torch.load(path, map_location=map_location, weights_only=True)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class Checkpoint(callbacks.Checkpoint):
    """Writes last.ckpt every `every` optimiser steps and after each epoch, and best.ckpt and model/model.safetensors
    when the task's score, of averaged weights if there are any, is the best so far.
    """

    def __init__(self, every: int = 1000) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got every={every}")
        self.every = every
        self.best = -math.inf
        self.saved = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Lightning cannot resume exactly with half accumulated gradients, or just before a validation.
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        validates = (batch_idx + 1) % (trainer.val_check_batch or math.inf) == 0 or trainer.is_last_batch
        if stepped and not validates and trainer.global_step >= self.saved + self.every:
            self.save_last(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        score = float(trainer.callback_metrics.get(cast(Task, pl_module).score, -math.inf))
        if trainer.sanity_checking or score <= self.best:
            return
        self.best = score
        run = Path(trainer.default_root_dir)
        trainer.save_checkpoint(run / "best.ckpt")
        averaged = [callback.average for callback in cast(Any, trainer).callbacks if isinstance(callback, EMA)]
        # Called on all ranks: it gathers sharded weights.
        state = averaged[0].state_dict() if averaged else trainer.strategy.lightning_module_state_dict()
        if trainer.is_global_zero:
            weights = {
                name.removeprefix("model."): weight for name, weight in state.items() if name.startswith("model.")
            }
            (run / "model").mkdir(exist_ok=True)
            save_weights(run / "model", weights)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save_last(trainer)

    def save_last(self, trainer: Trainer) -> None:
        self.saved = trainer.global_step
        trainer.save_checkpoint(Path(trainer.default_root_dir) / "last.ckpt")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "saved": self.saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.saved = state_dict["best"], state_dict["saved"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # The schedule needs the number of batches, and so the loader, before Lightning restores its counts.
        trainer.fit_loop.load_state_dict(checkpoint["loops"]["fit_loop"])


class Progress(NamedTuple):
    """The optimiser steps and whole epochs of a run.

    Args: stale_validations: since the best score, of a run that was stopped for lack of patience.
    """

    steps: int = 0
    epochs: int = 0
    stale_validations: int = 0

    def describe_end(self, length: Namespace, patience: int | None) -> str | None:
        """Return the reason why nothing is left to train, if so. Args: length: max_steps and max_epochs."""
        if self.stale_validations and patience is not None and patience <= self.stale_validations:
            return (
                f"stopped after {self.stale_validations} validations without a better score; raise patience to resume"
            )
        epochs = -1 if length.max_epochs is None else length.max_epochs
        if 0 <= length.max_steps <= self.steps or 0 <= epochs <= self.epochs:
            done = f"{self.epochs} epochs and {self.steps} steps"
            return f"is finished after {done}; raise trainer.max_epochs to resume"
        return None


def read_progress(checkpoint: Path) -> Progress:
    if not checkpoint.exists():
        return Progress()
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, UnpicklingError) as error:
        raise ValueError(
            f"{checkpoint} must be a complete checkpoint, got {str(error):.80}; remove it to start again"
        ) from error
    callbacks = [callback for name, callback in state["callbacks"].items() if name.startswith("Patience")]
    counts = (callback["wait_count"] for callback in callbacks if callback["wait_count"] >= callback["patience"])
    epochs = state["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    return Progress(state["global_step"], epochs, max(counts, default=0))
