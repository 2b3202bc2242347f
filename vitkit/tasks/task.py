"""The base of all objectives: parameter groups, a schedule in optimiser steps, and a mean loss over all terms."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vitkit.data.data_module import Data
from vitkit.data.order import derive_seed
from vitkit.optim import Group, Schedule, WarmupCosine, choose_kernel, format_groups, group_parameters

say = rank_zero_only(print)
LEARNT = 0.01  # nats above the floor: labels have 99 % of the probability


class Loss(NamedTuple):
    """A sum and the number of its terms (samples, tokens): both add up, over batches, ranks and accumulation."""

    total: Tensor
    terms: int


class RunSummary(NamedTuple):
    """The title and rows of a run's final table, further numbers for report.json, and the commands to continue with."""

    title: str
    rows: list[tuple[str, str]]
    numbers: dict[str, Any]
    next_commands: str


class Chance(NamedTuple):
    """The mean loss of a model that ignores its inputs, and its description in a message."""

    loss: float
    text: str


class Task(LightningModule, ABC):
    """A model and its objective. A subclass computes the loss of a batch, and validates.

    Args:
        optimizer: called with parameter groups and the learning rate. Weight decay is an argument of it. AdamW is fused
            where possible, unless `fused` or `foreach` is given.
        lr, base_lr: the peak learning rate, directly or for a batch of 256 (lr = base_lr * batch / 256).
        layer_decay: the learning rate of each layer as a share of that of the layer above; see
            `vitkit.optim.group_parameters`.
        schedule: called with the optimiser steps of a run, returns the function from a step to its factor.
        freeze: patterns for names of parameters that are not trained, such as embed.* and encoder.* Modules whose
            parameters are all frozen have neither dropout nor drop path.
    """

    exact = False  # whether a weight must stay in float32 and on one shard

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: Callable[[Iterable, float], Optimizer] = AdamW,
        lr: float | None = None,
        base_lr: float | None = None,
        layer_decay: float = 1.0,
        schedule: Callable[[int], Schedule] = WarmupCosine,
        freeze: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if (lr is None) == (base_lr is None):
            raise ValueError(f"one of lr and base_lr must be given, and not both, got lr={lr}, base_lr={base_lr}")
        self.model = model
        self.optimizer = optimizer
        self.lr = lr
        self.base_lr = base_lr
        self.layer_decay = layer_decay
        self.schedule = schedule
        _freeze(model, freeze)
        self._data: Data | None = None
        self.names: tuple[str, ...] = ()  # of the model's classes
        self.metrics: dict[str, float] = {}  # of the last validation, over `validated` samples
        self.validated = 0
        self.window: list[tuple[Loss, Tensor]] = []  # since the last optimiser step: losses, and indices of samples

    @property
    def data(self) -> Data:
        if self._data is None:
            raise RuntimeError("data must be bound to a task before it is used; call bind(data)")
        return self._data

    @property
    @abstractmethod
    def score(self) -> str:
        """Return the name of the validation metric that selects the best checkpoint."""

    def bind(self, data: Data) -> None:
        """Bind the task to its data; a second call with the same data does nothing.

        Raises: ValueError for data that do not suit this task.
        """
        if data is not self._data:
            self.adapt(data)
            self._data = data

    @abstractmethod
    def adapt(self, data: Data) -> None:
        """Set what depends on the data; `bind` calls it. Raises: ValueError for data that do not suit this task."""

    @abstractmethod
    def compute_loss(self, batch: Any) -> Loss: ...

    @abstractmethod
    def summarize(self, run: Path, weights: str, baselines: bool) -> RunSummary:
        """Return the results of a run, and write its figures into the run folder. Called on one rank.

        Args: weights: the name of the weights that were validated last. baselines: whether to fit baselines.
        """

    @property
    def standard_names(self) -> Mapping[str, str]:
        """Return the names of metrics in reports, by their shorter names in logs without "val/"."""
        return {}

    def select_logged(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that validation logs, by their names there."""
        return {f"val/{name}": metrics[standard] for name, standard in self.standard_names.items()}

    def collect_statistics(self) -> Mapping[str, float]:
        """Return further values to log, over the batches since the last call. Called on all ranks."""
        return {}

    def simplify(self) -> None:
        """Remove what keeps the loss of an overfitted batch above its floor, such as label smoothing."""

    def compute_floor(self, batch: Any) -> float:
        """Return the least possible mean loss of a batch."""
        return 0.0

    def compute_goal(self, batch: Any) -> float:
        """Return the mean loss below which a batch counts as overfitted; override it for losses not in nats."""
        return self.compute_floor(batch) + LEARNT

    def compute_chance(self, batch: Any) -> Chance | None:
        """Return the loss of a model that ignores its inputs, if it is known."""
        return None

    def find_fault(self, batch: Any, data: Data) -> str | None:
        """Return a description of a fault that keeps a batch from being overfitted, if there is one."""
        return None

    def compile_model(self) -> None:
        """Compile the model."""
        self.model.compile()

    def setup(self, stage: str) -> None:
        self.bind(cast(Any, self.trainer).datamodule)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data out of a copy, such as the one of averaged weights."""
        return {**super().__getstate__(), "_data": None}

    def on_train_start(self) -> None:
        self.window.clear()
        self.seed = torch.initial_seed()
        self.train()  # not earlier: Lightning warns of modules in evaluation mode

    def train(self, mode: bool = True) -> "Task":
        """Set the mode, but keep frozen towers and blocks in evaluation mode: without dropout and drop path."""
        super().train(mode)
        for module in self.model.modules():
            if (parameters := [*module.parameters()]) and not any(p.requires_grad for p in parameters):
                module.train(False)
        return self

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed dropout from the seed, the rank and the batch, so that a resumed run draws the same."""
        torch.manual_seed(derive_seed(self.seed, self.global_rank, self.current_epoch, batch_idx))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.compute_loss(batch)
        self.window.append((Loss(loss.total.detach(), loss.terms), batch.indices))
        return loss.total

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Rescale the gradients: Lightning takes the mean of sums over micro-batches and ranks, not over all terms."""
        window, self.window = self.window, []
        total = torch.stack([loss.total for loss, _ in window]).sum()
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        both = torch.stack([total, total.new_tensor(sum(loss.terms for loss, _ in window))])
        total, terms = self.trainer.strategy.reduce(both, reduce_op="sum").tolist()
        if not terms:  # no sample was readable: without gradients the optimiser changes nothing
            optimizer.zero_grad()
            return
        for gradient in gradients:
            gradient *= self.trainer.accumulate_grad_batches * self.trainer.world_size / terms
        norm = self.compute_norm(gradients)
        # Decided by sums over the ranks: a rank that stopped alone would leave the others waiting.
        if not math.isfinite(total + norm):
            self.raise_not_finite(total / terms, norm, window)
        self.log("loss", total / terms, prog_bar=True, logger=False)
        # Not by self.log, which writes after the checkpoint of the step: a kill between the two would lose the row.
        interval = cast(Any, self.trainer).log_every_n_steps  # 0: no rows of steps, as in Lightning
        if interval and self.global_step % interval == 0:
            row = {
                "train/loss": total / terms,
                "train/norm": norm,
                "lr": max(group["lr"] for group in optimizer.param_groups),
                **self.collect_statistics(),
            }
            for logger in self.loggers:
                logger.log_metrics({"epoch": self.current_epoch, **row}, self.global_step)

    def compute_norm(self, gradients: list[Tensor]) -> float:
        norm = nn.utils.get_total_norm(gradients)
        if isinstance(self.trainer.strategy, FSDPStrategy):  # each rank has a shard of every gradient
            norm = self.trainer.strategy.reduce(norm**2, reduce_op="sum") ** 0.5
        return norm.item()

    def raise_not_finite(self, loss: float, norm: float, window: list[tuple[Loss, Tensor]]) -> NoReturn:
        """Raise an error that names this rank's samples, of batches whose loss is not finite if there are any."""
        faulty = [indices for loss, indices in window if not loss.total.isfinite()]
        indices = torch.cat(faulty or [indices for _, indices in window]).tolist()
        names = ", ".join(self.data.name_sample(sample) for sample in indices[:16])
        more = f" and {len(indices) - 16} more" if len(indices) > 16 else ""
        saved = (Path(self.trainer.default_root_dir) / "last.ckpt").exists()
        resume = "the same command resumes from last.ckpt, saved before" if saved else "nothing was saved yet"
        raise ValueError(
            f"loss and gradient must be finite, got loss {loss}, gradient norm {norm} at step {self.global_step}; "
            "lower the learning rate in a new run, set trainer.gradient_clip_val, or leave out a sample of this step: "
            f"{names}{more}; {resume}"
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        parts = self.data.batch, self.trainer.world_size, self.trainer.accumulate_grad_batches
        lr = self.compute_peak_lr(math.prod(parts))
        if self.base_lr is not None:
            batch = " * ".join(map(str, parts))
            say(f"lr = base_lr * batch / 256 = {self.base_lr:g} * {batch} / 256 = {lr:g}")
        parameter_groups = self.make_groups(lr)
        say(format_groups(parameter_groups))
        optimizer = self.optimizer([group.options for group in parameter_groups], lr)
        clipped = self.trainer.gradient_clip_val and self.trainer.precision == "bf16-mixed"
        if clipped and optimizer.defaults.get("fused"):
            raise ValueError(
                "model.optimizer.fused must be left out where trainer.gradient_clip_val is given and trainer.precision "
                "is bf16-mixed, got fused=True, which Lightning refuses to clip; AdamW is fused anyway"
            )
        choose_kernel(optimizer)
        factor = self.make_schedule(self.trainer.estimated_stepping_batches)
        if factor.note:
            say(f"note: {factor.note}")
        # Not the object itself: LambdaLR would save its attributes, and a longer run would restore the old length.
        scheduler = LambdaLR(optimizer, lambda step: factor(step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def make_schedule(self, steps: int | float) -> Schedule:
        """Return the schedule of a run. Raises: ValueError for endless steps, or a schedule that does not fit them."""
        if math.isinf(steps):
            raise ValueError("trainer.max_epochs or trainer.max_steps must be given: the schedule depends on them")
        return self.schedule(int(steps))

    def make_groups(self, lr: float) -> list[Group]:
        """Return the parameter groups for a peak learning rate."""
        # The weight decay is bound in the optimiser factory, so one is made to ask for it.
        decay = self.optimizer([nn.Parameter(torch.empty(0))], lr).defaults.get("weight_decay", 0.0)
        return group_parameters(self, lr, decay, self.layer_decay)

    def compute_peak_lr(self, batch: int) -> float:
        """Return the peak learning rate. Args: batch: samples in an optimiser step."""
        return self.lr if self.lr is not None else (self.base_lr or 0.0) * batch / 256


def _freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    if idle := [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]:
        raise ValueError(f"freeze must match parameters, got {', '.join(idle)}; they are called {', '.join(names)}")
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"freeze must leave something to train, got freeze={list(patterns)}")
