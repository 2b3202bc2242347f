"""Train two towers in one process or in several and save the results: `pairs_ranks.py FOLDER`, or call `train`."""

import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy

from vitkit import losses
from vitkit.data.pairs import Pairs
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.recall import Retrieval
from vitkit.models import CLIP, TextTower, ViT
from vitkit.nn import Encoder, EndOfText, Last
from vitkit.tasks.contrast import Contrast


class Results(Callback):
    """Saves the gradients of each step and the results of the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: list[list[torch.Tensor]] = []

    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        gradients = [parameter.grad.clone() for parameter in pl_module.parameters() if parameter.grad is not None]
        self.steps += [gradients] if gradients else []

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task = cast(Rows, pl_module)
        results = {
            "weights": task.model.state_dict(),
            "gradients": self.steps,
            "rows": task.rows,
            "metrics": task.metrics,
            "validated": [*cast(Retrieval, task.retrieval).indices],
        }
        if trainer.is_global_zero:
            torch.save(results, self.path)


class Rows(Contrast):
    """Keeps the rows of the log."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows: list[dict[str, float]] = []

    def collect_statistics(self) -> dict[str, float]:
        self.rows.append({**super().collect_statistics()})
        return self.rows[-1]


def towers(sigmoid: bool) -> CLIP:
    torch.manual_seed(0)
    text = TextTower(Encoder(16, 1, 2, causal=not sigmoid), 49408, 6, 8, pool=Last if sigmoid else EndOfText)
    image = ViT(Encoder(16, 1, 2), (8, 8), (4, 4), 8, channels=1)
    return CLIP(image, text, scale=10.0, bias=-2.0 if sigmoid else None)


def train(processes: int, sigmoid: bool, path: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    preprocess, tokenizer = Preprocess((8, 8), (0.5,), (0.5,)), Tokenizer(6, whole=sigmoid)
    data = Pairs("digits", preprocess=preprocess, tokenizer=tokenizer, batch=8 // processes)
    # Each image has two captions, of which one is drawn, and many are equal.
    captions = cast(list[tuple[str, ...]], data.captioned.captions)
    captions[:] = [(text, f"the {text}") for (text,) in captions]
    data.training, data.validation = data.training[:21], data.validation[:23]
    options = {"loss": losses.sigmoid, "chunk": 2} if sigmoid else {}
    results = Results(path)
    task = Rows(towers(sigmoid), lr=1e-3, optimizer=partial(torch.optim.SGD), varied=0, **options)
    ddp = DDPStrategy(process_group_backend="gloo", start_method="fork", find_unused_parameters=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=processes,
        strategy=ddp if processes > 1 else "auto",
        precision="64-true",
        max_epochs=1,
        callbacks=[results],
        log_every_n_steps=1,
        use_distributed_sampler=False,
        default_root_dir=path.parent,
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    )
    trainer.fit(task, datamodule=data)


if __name__ == "__main__":
    for processes in (2, 4):
        for sigmoid in (False, True):
            train(processes, sigmoid, Path(sys.argv[1]) / f"{processes}-{sigmoid}.pt")
