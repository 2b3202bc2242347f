"""Checkpoints of a run: last.ckpt to resume from, best.ckpt, and the weights of the model folder."""

import math
import os
import signal
from pathlib import Path
from pickle import UnpicklingError
from threading import current_thread, main_thread
from typing import Any, Literal, NamedTuple, cast

import torch
from jsonargparse import Namespace
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule, Trainer, callbacks
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from vitkit.bundle.weights import save_weights
from vitkit.fit.ema import EMA
from vitkit.support.errors import format_count
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
    """Writes last.ckpt every `every` optimiser steps and after each epoch, best.ckpt after each validation with the
    best score so far, and the validated weights, averaged if there is an average, into model/model.safetensors: after
    each validation, or only with best.ckpt if `keep` is "best".

    best.ckpt is written in either case, so that a command with another `keep` can resume the run or report it anew.
    On Ctrl-C and SIGTERM the run stops at the next point from which it resumes exactly, once last.ckpt is written.
    """

    keep: Literal["last", "best"] = "last"

    def __init__(self, every: int = 1000) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got every={every}")
        self.every = every
        self.best = -math.inf
        self.kept = -1  # the optimiser steps of the weights in model/, once this process has validated them
        self.saved = 0
        self.signal = 0  # the number of the signal that asked to stop

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signal = 0
        if current_thread() is main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):  # Lightning restores their handlers at the end of a fit
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, self.request_stop)

    def request_stop(self, number: int, _frame: Any) -> None:
        """Stop the run at the next point from which it resumes exactly; at once if Ctrl-C is pressed again."""
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        # Not by print, which the signal may have interrupted.
        rank_zero_only(os.write)(2, b"\nstopping after this step, or this validation; Ctrl-C again stops at once\n")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Lightning cannot resume exactly with half accumulated gradients, or just before a validation.
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        validates = (batch_idx + 1) % (trainer.val_check_batch or math.inf) == 0 or trainer.is_last_batch
        if stepped and not validates:
            self.save_and_stop(trainer, trainer.global_step >= self.saved + self.every)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        score = float(trainer.callback_metrics.get(cast(Task, pl_module).score, -math.inf))
        fitting = trainer.state.fn == TrainerFn.FITTING
        better = fitting and score > self.best
        if better:
            self.best = score
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "best.ckpt")
        if better or self.keep == "last" or not fitting:
            self.kept = trainer.global_step
            self.save_model(trainer)

    def save_model(self, trainer: Trainer) -> None:
        """Write the weights of the last validation into the model folder. Called on all ranks: shards are gathered."""
        averages = [callback.average for callback in cast(Any, trainer).callbacks if isinstance(callback, EMA)]
        average = next((average for average in averages if average is not None), None)
        state = trainer.strategy.lightning_module_state_dict() if average is None else average.state_dict()
        run = Path(trainer.default_root_dir)
        if trainer.is_global_zero:
            weights = {
                name.removeprefix("model."): weight for name, weight in state.items() if name.startswith("model.")
            }
            (run / "model").mkdir(exist_ok=True)
            save_weights(run / "model", weights)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save_and_stop(trainer, True)

    def save_and_stop(self, trainer: Trainer, saves: bool) -> None:
        """Write last.ckpt if it is due or a signal asked any rank to stop, and then stop all ranks."""
        stops = trainer.strategy.reduce_boolean_decision(bool(self.signal), all=False)
        if saves or stops:
            self.saved = trainer.global_step
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "last.ckpt")
        if stops:
            raise KeyboardInterrupt if self.signal == signal.SIGINT else SIGTERMException

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "saved": self.saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.saved = state_dict["best"], state_dict["saved"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.load_state_dict(checkpoint["callbacks"][self.state_key])
        if trainer.validating and self.selects:
            checkpoint = self.load_best(trainer)
        # The schedule needs the number of batches, and so the loader, before Lightning restores its counts.
        trainer.fit_loop.load_state_dict(checkpoint["loops"]["fit_loop"])

    def load_best(self, trainer: Trainer) -> dict[str, Any]:
        """Load the weights of best.ckpt after all else is of last.ckpt, and return the checkpoint.

        Raises: ValueError if there is none.
        """
        path = Path(trainer.default_root_dir) / "best.ckpt"
        if not path.exists():
            raise ValueError(f"keep must be last where best.ckpt was removed, got keep=best and no {path}")
        trainer.loggers = []  # metrics.csv has this validation already
        checkpoint = trainer.strategy.load_checkpoint(path)
        trainer.strategy.load_model_state_dict(checkpoint)
        return checkpoint

    @property
    def selects(self) -> bool:
        """Return whether the kept weights are those of the best score; a run without a validation has none."""
        return self.keep == "best" and self.best > -math.inf

    def is_final(self, trainer: Trainer) -> bool:
        """Return whether the last validation of a fit is that of the kept weights, and was known to be the last."""
        return self.kept == trainer.global_step and not trainer.should_stop


class Progress(NamedTuple):
    """The optimiser steps and whole epochs of a run.

    Args:
        stale_validations: since the best score, of a run that was stopped for lack of patience.
        within_epoch: whether some steps of the next epoch are done.
    """

    steps: int = 0
    epochs: int = 0
    stale_validations: int = 0
    within_epoch: bool = False

    def describe_end(self, length: Namespace, patience: int | None) -> str | None:
        """Return the reason why nothing is left to train, if so. Args: length: max_steps and max_epochs."""
        if self.stale_validations and patience is not None and patience <= self.stale_validations:
            validations = format_count(self.stale_validations, "validations")
            return f"stopped after {validations} without a better score; raise patience to resume"
        epochs = -1 if length.max_epochs is None else length.max_epochs
        limits = {"trainer.max_epochs": (epochs, self.epochs), "trainer.max_steps": (length.max_steps, self.steps)}
        if reached := [name for name, (limit, count) in limits.items() if 0 <= limit <= count]:
            done = f"{format_count(self.epochs, 'epochs')} and {format_count(self.steps, 'steps')}"
            return f"is finished after {done}; raise {' and '.join(reached)} to resume"
        return None


def read_progress(checkpoint: Path) -> Progress:
    if not checkpoint.exists():
        return Progress()
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, UnpicklingError) as error:
        raise ValueError(
            f"{checkpoint} must be a complete checkpoint, got {str(error):.80}; "
            f"choose another --run, from its weights: --pretrained {checkpoint.parent / 'model'}"
        ) from error
    callbacks = [callback for name, callback in state["callbacks"].items() if name.startswith("Patience")]
    counts = (callback["wait_count"] for callback in callbacks if callback["wait_count"] >= callback["patience"])
    epochs = state["loops"]["fit_loop"]["epoch_progress"]["current"]
    within_epoch = epochs["started"] > epochs["processed"]
    return Progress(state["global_step"], epochs["processed"], max(counts, default=0), within_epoch)
