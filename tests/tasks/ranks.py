"""Train in one process or in several and save the results: `ranks.py PROCESSES FILE`, or call `train`."""

import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from vitkit.data.images import Images
from vitkit.data.preprocess import Preprocess
from vitkit.fit.recomputation import BlockCheckpointing
from vitkit.models import MAE, ViT
from vitkit.nn import Encoder, Rotary
from vitkit.tasks.classify import Classify
from vitkit.tasks.reconstruction import Reconstruct


class Gradients(Callback):
    """Keeps the clipped gradients of each step."""

    def __init__(self) -> None:
        self.steps: list[list[torch.Tensor]] = []

    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        gradients = [parameter.grad.clone() for parameter in pl_module.parameters() if parameter.grad is not None]
        self.steps += [gradients] if gradients else []


def train(processes: int, path: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    data = Images("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), batch=8 // processes)
    data.training, data.validation = data.training[:21], data.validation[:9]
    model = ViT(Encoder(16, 1, 2, position=partial(Rotary, axes=2)), (8, 8), (4, 4), 10, channels=1)
    model.register_buffer("shift", torch.zeros(1))  # DDP broadcasts buffers
    gradients = Gradients()
    recomputation = [BlockCheckpointing()] if processes > 1 else []  # must change nothing
    trainer = Trainer(
        accelerator="cpu",
        devices=processes,
        strategy=DDPStrategy(process_group_backend="gloo") if processes > 1 else "auto",
        precision="64-true",
        max_epochs=2,
        gradient_clip_val=0.5,
        callbacks=[gradients, *recomputation],
        use_distributed_sampler=False,
        default_root_dir=path.parent,
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    )
    task = Classify(model, lr=1e-3)
    trainer.fit(task, datamodule=data)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
    data.source.class_names = ("even", "small")
    data.source.labels = [
        tuple(kind for kind, has in enumerate((label % 2 == 0, label < 5)) if has)
        for label in cast(list[int], data.source.labels)
    ]
    multilabel = Classify(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double(), lr=1e-3)
    trainer.validate(multilabel, datamodule=data, verbose=False)
    images = Images("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), batch=4 if processes > 1 else 3)
    images.training, images.validation = images.training[:95], images.validation[:25]
    torch.manual_seed(0)
    mae = MAE(Encoder(16, 1, 2), Encoder(16, 1, 2), (8, 8), (2, 4), channels=1).double()
    reconstruct = Reconstruct(mae, lr=1e-3, probed=90)
    trainer.validate(reconstruct, datamodule=images, verbose=False)
    scores = {"variance": reconstruct.patch_variance, "validated": reconstruct.validated}
    scores |= {**reconstruct.metrics, **reconstruct.probe.scores}
    if trainer.is_global_zero:
        result = {
            "weights": model.state_dict(),
            "gradients": gradients.steps,
            "metrics": metrics,
            "multilabel": multilabel.metrics,
        }
        torch.save({**result, "confusion": task.confusion, "mae": scores}, path)


if __name__ == "__main__":
    train(int(sys.argv[1]), Path(sys.argv[2]))
