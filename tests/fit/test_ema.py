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


class Witness(Callback):
    """The first parameter after each step, and while validating."""

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
def test_the_average_follows_the_weights_and_is_what_validates_and_is_saved(
    decay: float, model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    witness = Witness()
    fitted = trainer(2, callbacks=[EMA(decay), witness], plugins=[AtomicIO()])
    fitted.fit(Classify(model, lr=0.1), datamodule=few(batch=5, validation=2))
    average = witness.trained[0]
    for n, weights in enumerate(witness.trained[1:], start=1):
        d = min(decay, (1 + n) / (10 + n))
        average = d * average + (1 - d) * weights
    assert len(witness.trained) == 10
    assert_close(witness.validated[-1], average)
    fitted.save_checkpoint(tmp_path / "end.ckpt")
    checkpoint = torch.load(tmp_path / "end.ckpt", weights_only=True)
    name = next(name for name, _ in fitted.lightning_module.named_parameters())
    assert_close(checkpoint["state_dict"][name], average)
    assert_close(next(fitted.lightning_module.parameters()).detach(), average)


def test_a_decay_is_a_share() -> None:
    with pytest.raises(ValueError, match="decay must be at least 0 and below 1, got decay=1.0"):
        EMA(1.0)
