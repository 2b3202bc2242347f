"""What every objective shares: parameter groups, a schedule in optimiser steps, and a mean over all terms."""

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


class Outcome(NamedTuple):
    """The end of a run: a table's title and rows, what else report.json holds, and what may be done next."""

    title: str
    rows: list[tuple[str, str]]
    numbers: dict[str, Any]
    following: str


class Guess(NamedTuple):
    """The mean loss of a model that makes nothing of its inputs, and how a line of text calls it."""

    loss: float
    text: str


class Task(LightningModule, ABC):
    """A model and what it is trained for. A subclass gives the `loss` of a batch, and validates.

    Args:
        optimizer: called with parameter groups and the learning rate. Weight decay is an argument of its own. AdamW is
            fused where it can be, unless `fused` or `foreach` is given.
        lr, base_lr: the learning rate at its peak: as it is, or for a batch of 256 (lr = base_lr * batch / 256).
        layer_decay: the learning rate of each layer as a share of that of the layer above; see
            `vitkit.optim.group_parameters`.
        schedule: from the number of optimiser steps in a run to the factor at each.
        freeze: patterns of the names of parameters that are not trained, such as embed.* and encoder.*
    """

    exact = False  # whether a weight has to stay whole, and in float32

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
        self.names: tuple[str, ...] = ()  # of the classes that the model knows
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
        """What validation logs and the best checkpoint has most of."""

    def bind(self, data: Data) -> None:
        """Bind the task to its data; a second call with the same data does nothing.

        Raises: ValueError for data that are not for this task.
        """
        if data is not self._data:
            self.adapt(data)
            self._data = data

    @abstractmethod
    def adapt(self, data: Data) -> None:
        """Set what depends on the data; `bind` calls it. Raises: ValueError for data that are not for this task."""

    @abstractmethod
    def loss(self, batch: Any) -> Loss: ...

    @abstractmethod
    def outcome(self, run: Path, latest: str, best: float, baselines: bool) -> Outcome:
        """What was reached, asked of one rank; its pictures go into the run's folder.

        Args: latest: what the last validation is called. best: the best score. baselines: whether to fit those too.
        """

    @property
    def standard_names(self) -> Mapping[str, str]:
        """Return the names in reports of what validation logs, by the shorter names there, without "val/"."""
        return {}

    def rename(self, numbers: Mapping[str, Any]) -> dict[str, float]:
        """Return what validation logs of numbers by their standard names."""
        return {f"val/{name}": numbers[standard] for name, standard in self.standard_names.items()}

    def noted(self) -> Mapping[str, float]:
        """What is logged beside the loss of a step, asked of all ranks: of the batches since it was last asked."""
        return {}

    def simplify(self) -> None:
        """Drop what keeps the loss of a batch that is learned by heart above its floor, such as label smoothing."""

    def floor(self, batch: Any) -> float:
        """Return the least mean loss that a batch admits."""
        return 0.0

    def goal(self, batch: Any) -> float:
        """Return the mean loss below which a batch counts as learned by heart; a loss in other units than nats has
        another."""
        return self.floor(batch) + LEARNT

    def guess(self, batch: Any) -> Guess | None:
        """Return the loss of a model that makes nothing of its inputs, where it is known."""
        return None

    def find_fault(self, batch: Any, data: Data) -> str | None:
        """Return what is in a batch that nobody could learn by heart."""
        return None

    def speed_up(self) -> None:
        """Compile the model."""
        self.model.compile()

    def setup(self, stage: str) -> None:
        self.bind(cast(Any, self.trainer).datamodule)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data out of a copy, such as the one whose weights are averaged."""
        return {**super().__getstate__(), "_data": None}

    def on_train_start(self) -> None:
        self.window.clear()
        self.seed = torch.initial_seed()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Dropout is a function of the seed, the rank and the batch, so a run goes on with what it would have drawn."""
        torch.manual_seed(derive_seed(self.seed, self.global_rank, self.current_epoch, batch_idx))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.window.append((Loss(loss.total.detach(), loss.terms), batch.indices))
        return loss.total

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Lightning has taken the mean of the sums over micro-batches and ranks: make it that over all terms."""
        window, self.window = self.window, []
        total = torch.stack([loss.total for loss, _ in window]).sum()
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        both = torch.stack([total, total.new_tensor(sum(loss.terms for loss, _ in window))])
        total, terms = self.trainer.strategy.reduce(both, reduce_op="sum").tolist()
        if not terms:  # nothing of it could be read: an optimiser leaves alone what has no gradient
            optimizer.zero_grad()
            return
        for gradient in gradients:
            gradient *= self.trainer.accumulate_grad_batches * self.trainer.world_size / terms
        norm = self.norm(gradients)
        # Only now, and from sums over the ranks: one that stopped alone would leave the others waiting.
        if not math.isfinite(total + norm):
            self.stop(total / terms, norm, window)
        self.log("loss", total / terms, prog_bar=True, logger=False)
        # Not by self.log: that writes after the step's checkpoint, and a kill between the two would lose the row.
        if self.global_step % cast(Any, self.trainer).log_every_n_steps == 0:
            row = {
                "train/loss": total / terms,
                "train/norm": norm,
                "lr": max(group["lr"] for group in optimizer.param_groups),
                **self.noted(),
            }
            for logger in self.loggers:
                logger.log_metrics({"epoch": self.current_epoch, **row}, self.global_step)

    def norm(self, gradients: list[Tensor]) -> float:
        norm = nn.utils.get_total_norm(gradients)
        if isinstance(self.trainer.strategy, FSDPStrategy):  # a rank has a part of each
            norm = self.trainer.strategy.reduce(norm**2, reduce_op="sum") ** 0.5
        return norm.item()

    def stop(self, loss: float, norm: float, window: list[tuple[Loss, Tensor]]) -> NoReturn:
        """Raises: ValueError that names this rank's samples, of batches whose own loss is not finite, else of all."""
        wrong = [indices for loss, indices in window if not loss.total.isfinite()]
        indices = torch.cat(wrong or [indices for _, indices in window]).tolist()
        names = ", ".join(self.data.name_sample(sample) for sample in indices[:16])
        more = f" and {len(indices) - 16} more" if len(indices) > 16 else ""
        saved = (Path(self.trainer.default_root_dir) / "last.ckpt").exists()
        on = "the same command goes on from last.ckpt, which is from before" if saved else "nothing was saved yet"
        raise ValueError(
            f"loss and gradient must be finite, got loss {loss}, gradient norm {norm} at step {self.global_step}; "
            "lower the learning rate in a new run, set trainer.gradient_clip_val, or leave out a sample of this step: "
            f"{names}{more}; {on}"
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        parts = self.data.batch, self.trainer.world_size, self.trainer.accumulate_grad_batches
        lr = self.peak(math.prod(parts))
        if self.base_lr is not None:
            spelt = " * ".join(map(str, parts))
            say(f"lr = base_lr * batch / 256 = {self.base_lr:g} * {spelt} / 256 = {lr:g}")
        found = self.groups(lr)
        say(format_groups(found))
        if math.isinf(steps := self.trainer.estimated_stepping_batches):
            raise ValueError("trainer.max_epochs or trainer.max_steps must be given: the schedule ends with them")
        optimizer = self.optimizer([group.options for group in found], lr)
        clipped = self.trainer.gradient_clip_val and self.trainer.precision == "bf16-mixed"
        if clipped and optimizer.defaults.get("fused"):
            raise ValueError(
                "model.optimizer.fused must be left out where trainer.gradient_clip_val is given and trainer.precision "
                "is bf16-mixed, got fused=True, which Lightning refuses to clip; AdamW is fused anyway"
            )
        choose_kernel(optimizer)
        factor = self.schedule(int(steps))
        # LambdaLR would put an object's attributes into the checkpoint, and a longer run would get the old length back.
        scheduler = LambdaLR(optimizer, lambda step: factor(step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def groups(self, lr: float) -> list[Group]:
        """What is trained how, at this peak of the learning rate."""
        # An optimiser alone knows the decay that it was configured with.
        decay = self.optimizer([nn.Parameter(torch.empty(0))], lr).defaults.get("weight_decay", 0.0)
        return group_parameters(self, lr, decay, self.layer_decay)

    def peak(self, batch: int) -> float:
        """The learning rate that the schedule's factors multiply, for so many samples in an optimiser step."""
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
