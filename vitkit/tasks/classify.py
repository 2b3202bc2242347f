"""Image classification. Letters: B batch, C classes."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_confusion_matrix

from vitkit.data.pictures import Batch
from vitkit.tasks.task import Loss, Task


class Classify(Task):
    """Cross entropy against (1 - s) label + s / C, with s = `label_smoothing`; `task` are the arguments of Task.

    Validates over every sample of all ranks: the plain cross entropy, the accuracy, and `confusion`, the counts (C, C)
    of labels by predictions.
    """

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0, **task: Any) -> None:
        super().__init__(model, **task)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be at least 0 and below 1, got label_smoothing={label_smoothing}")
        self.label_smoothing = label_smoothing
        self.confusion = torch.zeros(0, 0, dtype=torch.int64)

    def loss(self, batch: Batch) -> Loss:
        total = F.cross_entropy(self.logits(batch), batch.labels, label_smoothing=self.label_smoothing, reduction="sum")
        return Loss(total, len(batch.labels))

    def logits(self, batch: Batch) -> Float[Tensor, "B C"]:
        logits = self.model(batch.images)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))  # 16 bits are too coarse for exponentials

    def on_validation_epoch_start(self) -> None:
        classes = self.data.classes
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=self.device)
        self.surprise = torch.zeros((), device=self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits = self.logits(batch)
        self.confusion += multiclass_confusion_matrix(logits, batch.labels, len(self.confusion), validate_args=False)
        self.surprise += F.cross_entropy(logits, batch.labels, reduction="sum")

    def on_validation_epoch_end(self) -> None:
        # Ranks may have unequal numbers of batches, so this is the first moment at which they can meet.
        self.confusion = self.trainer.strategy.reduce(self.confusion, reduce_op="sum")
        surprise = self.trainer.strategy.reduce(self.surprise, reduce_op="sum")
        count = self.confusion.sum()
        metrics = {"val/loss": surprise / count, "val/accuracy": self.confusion.trace() / count}
        self.log_dict(metrics, prog_bar=True, sync_dist=True, reduce_fx="max")  # equal on all ranks: max is exact
