from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.data.images import Images
from vitkit.fit.checkpoint import AtomicIO
from vitkit.fit.ema import EMA
from vitkit.tasks.classify import Classify


class FirstParameter(Callback):
    """Keeps the first parameter after each step and in validation."""

    def __init__(self) -> None:
        self.trained: list[Tensor] = []
        self.validated: list[Tensor] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.trained.append(next(pl_module.parameters()).detach().clone())

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.validated.append(next(pl_module.parameters()).detach().clone())


@pytest.mark.parametrize("decay", [0.9, 0.2])
def test_average_is_exponential_and_is_validated_and_saved(
    decay: float, model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    parameters = FirstParameter()
    run_trainer = trainer(2, callbacks=[EMA(decay), parameters], plugins=[AtomicIO()])
    run_trainer.fit(Classify(model, lr=0.1), datamodule=few(batch=5, validation=2))
    average = parameters.trained[0]
    for n, weights in enumerate(parameters.trained[1:], start=1):
        d = min(decay, (1 + n) / (10 + n))
        average = d * average + (1 - d) * weights
    assert len(parameters.trained) == 10
    assert_close(parameters.validated[-1], average)
    run_trainer.save_checkpoint(tmp_path / "end.ckpt")
    checkpoint = torch.load(tmp_path / "end.ckpt", weights_only=True)
    name = next(name for name, _ in run_trainer.lightning_module.named_parameters())
    assert_close(checkpoint["state_dict"][name], average)
    assert_close(next(run_trainer.lightning_module.parameters()).detach(), average)


def test_decay_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="decay must be at least 0 and below 1, got decay=1.0"):
        EMA(1.0)
