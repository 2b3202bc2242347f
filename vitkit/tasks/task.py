"""What every objective shares: parameter groups, a schedule in optimiser steps, and a mean over all terms."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vitkit.data.images import Images
from vitkit.optim import WarmupCosine, groups

say = rank_zero_only(print)


class Loss(NamedTuple):
    """A sum and the number of its terms (samples, tokens): both add up, over batches, ranks and accumulation."""

    total: Tensor
    terms: int


class Task(LightningModule, ABC):
    """A model and what it is trained for. A subclass gives the `loss` of a batch, and validates.

    Args:
        optimizer: called with parameter groups and the learning rate. Weight decay is an argument of its own.
        lr, base_lr: the learning rate at its peak: as it is, or for a batch of 256 (lr = base_lr * batch / 256).
        schedule: from the number of optimiser steps in a run to the factor at each.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: Callable[[Iterable, float], Optimizer] = AdamW,
        lr: float | None = None,
        base_lr: float | None = None,
        schedule: Callable[[int], WarmupCosine] = WarmupCosine,
    ) -> None:
        super().__init__()
        if (lr is None) == (base_lr is None):
            raise ValueError(f"one of lr and base_lr must be given, and not both, got lr={lr}, base_lr={base_lr}")
        self.model = model
        self.optimizer = optimizer
        self.lr = lr
        self.base_lr = base_lr
        self.schedule = schedule
        self.window: list[tuple[Loss, Tensor]] = []  # since the last optimiser step: losses, and indices of samples

    @property
    def data(self) -> Images:
        return cast(Any, self.trainer).datamodule

    @abstractmethod
    def loss(self, batch: Any) -> Loss: ...

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.window.append((Loss(loss.total.detach(), loss.terms), batch.indices))
        self.check(loss.total.item() / loss.terms, "loss", batch.indices)
        return loss.total

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Lightning has taken the mean of the sums over micro-batches and ranks: make it that over all terms."""
        losses, indices = zip(*self.window, strict=True)
        self.window.clear()
        total = torch.stack([loss.total for loss in losses]).sum()
        both = torch.stack([total, total.new_tensor(sum(loss.terms for loss in losses))])
        total, terms = self.trainer.strategy.reduce(both, reduce_op="sum").tolist()
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for gradient in gradients:
            gradient *= self.trainer.accumulate_grad_batches * self.trainer.world_size / terms
        norm = self.check(nn.utils.get_total_norm(gradients).item(), "gradient norm", torch.cat(indices))
        self.log("loss", total / terms, prog_bar=True, logger=False)
        # Not by self.log: that writes after the step's checkpoint, and a kill between the two would lose the row.
        if self.global_step % cast(Any, self.trainer).log_every_n_steps == 0:
            row = {"train/loss": total / terms, "train/norm": norm, "lr": optimizer.param_groups[0]["lr"]}
            for logger in self.loggers:
                logger.log_metrics({"epoch": self.current_epoch, **row}, self.global_step)

    def check(self, value: float, name: str, indices: Tensor) -> float:
        """Raises: ValueError that names the samples, if the value is not finite."""
        if math.isfinite(value):
            return value
        samples = [self.data.source.name(sample) for sample in indices.tolist()]
        more = f" and {len(samples) - 16} more" if len(samples) > 16 else ""
        raise ValueError(
            f"{name} must be finite, got {value} at step {self.global_step}, of {', '.join(samples[:16])}{more}; "
            "the last checkpoint is from before, and the same command goes on from it; if it happens again, start "
            "a new run with a lower learning rate, with trainer.gradient_clip_val, or without these samples"
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        lr = self.peak()
        # An optimiser alone knows the decay that it was configured with.
        decay = self.optimizer([nn.Parameter(torch.empty(0))], lr).defaults.get("weight_decay", 0.0)
        optimizer = self.optimizer(groups(self, lr, decay), lr)
        say(f"{'group':<12}{'tensors':>8}{'parameters':>14}{'decay':>8}")
        for group in optimizer.param_groups:
            sizes = [parameter.numel() for parameter in group["params"]]
            say(f"{group['name']:<12}{len(sizes):>8}{sum(sizes):>14,}{group['weight_decay']:>8g}")
        factor = self.schedule(int(self.trainer.estimated_stepping_batches))
        # LambdaLR would put an object's attributes into the checkpoint, and a longer run would get the old length back.
        scheduler = LambdaLR(optimizer, lambda step: factor(step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def peak(self) -> float:
        """The learning rate that the schedule's factors multiply."""
        if self.lr is not None:
            return self.lr
        base = self.base_lr or 0.0
        parts = self.data.batch, self.trainer.world_size, self.trainer.accumulate_grad_batches
        lr = base * math.prod(parts) / 256
        say(f"lr = base_lr * batch / 256 = {base:g} * {' * '.join(map(str, parts))} / 256 = {lr:g}")
        return lr
