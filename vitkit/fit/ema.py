"""Exponential moving average of the weights, which is validated, reported and saved."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class EMA(WeightAveraging):
    """Averages weights: average <- d average + (1 - d) weights, d = min(decay, (1 + n) / (10 + n)) at step n.

    A checkpoint's `state_dict` is the average; the raw weights are in `current_model_state`. Buffers are copied.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got decay={decay}")
        self.decay = decay
        super().__init__(use_buffers=False, multi_avg_fn=self.update_average)

    def update_average(self, average: Any, weights: Any, step: Tensor | int) -> None:
        n = int(step)
        get_ema_multi_avg_fn(min(self.decay, (1 + n) / (10 + n)))(average, weights, step)

    @property
    def average(self) -> nn.Module | None:
        """Return the task with averaged weights, None outside of a fit."""
        return None if self._average_model is None else self._average_model.module

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._average_model = None  # of an earlier fit; a checkpoint that is validated later has its average
        super().setup(trainer, pl_module, stage)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.training:  # validation needs only the average, in `state_dict`
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
