"""A callback by class path, and data of a user with an argument whose name vitkit has moved."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from vitkit.data.corpus import Corpus
from vitkit.data.tokenizer import Tokenizer


class Gradients(Callback):
    """Write the gradients of each step, as the optimiser has them, into the run folder."""

    def __init__(self) -> None:
        self.steps: list[list[torch.Tensor]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > len(self.steps):  # else more batches follow in this step
            gradients = [parameter.grad for parameter in pl_module.parameters()]
            self.steps.append([gradient.clone() for gradient in gradients if gradient is not None])

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            torch.save(self.steps, Path(trainer.default_root_dir) / "gradients.pt")


class Letters(Corpus):
    """Texts with a context of their own."""

    def __init__(self, train: str, *, context: int = 16, batch: int = 8) -> None:
        super().__init__(train, tokenizer=Tokenizer(context, vocabulary="bytes"), batch=batch)
