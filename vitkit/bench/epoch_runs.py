"""The processes of `vitkit bench --epoch`: each trains an epoch per line on stdin, and replies with its seconds."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors.torch import load_file

from vitkit.bench.attention_capture import read_peak_memory
from vitkit.bench.peers import DECAY, LR, Settings
from vitkit.bench.timing import synchronize
from vitkit.bench.vit_steps import Shape, build_peer

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-true", "bf16-mixed": "bf16-mixed"}


@dataclass(frozen=True)
class EpochRun:
    """A training run of either side. Args: folder: of the images, the initial weights and the output."""

    folder: str
    shape: Shape
    classes: int
    dtype: str
    device: str
    threads: int
    batch: int
    workers: int
    epochs: int
    compiled: bool


class EndOfTurns(Exception):
    """The signal that stdin was closed: no further epoch is to be trained."""


class Turns(Callback):
    """A callback that starts each epoch at a line on stdin, and replies with its seconds once all after it is done.

    Args: answers: a file descriptor.

    Raises: EndOfTurns if stdin is closed when an epoch would start.
    """

    def __init__(self, answers: int, device: str) -> None:
        self.answers = answers
        self.device = torch.device(device)
        self.start = self.seconds = 0.0

    def begin(self) -> None:
        if not sys.stdin.readline():
            raise EndOfTurns
        self.start = time.perf_counter()

    def end(self) -> None:
        synchronize(self.device)
        self.seconds = time.perf_counter() - self.start

    def answer(self) -> None:
        os.write(self.answers, (json.dumps([self.seconds, read_peak_memory()]) + "\n").encode())

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch:
            self.answer()
        self.begin()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end()


def run_fit(run: EpochRun, answers: int) -> None:
    from vitkit.fit import command

    device, images = torch.device(run.device), f"{run.folder}/images"
    # Lightning validates within the last epoch. With one more, which never starts, none of those timed is the last.
    epochs = run.epochs + 1
    transforms = [
        {"class_path": "vitkit.data.augment.RandomResizedCrop", "init_args": {"size": [run.shape.pixels] * 2}},
        {"class_path": "torchvision.transforms.v2.RandomHorizontalFlip"},
    ]
    turns = {"class_path": "vitkit.bench.epoch_runs.Turns", "init_args": {"answers": answers, "device": run.device}}
    options = {
        "pretrained": f"{run.folder}/model",
        "run": f"{run.folder}/run",
        "threads": run.threads,
        "model.lr": LR,
        "data.train": images,
        "data.val": images,
        "data.batch": run.batch,
        "data.workers": run.workers,
        "data.augment.images": json.dumps(transforms),
        "ema.decay": 0,
        "trainer.accelerator": device.type,
        "trainer.devices": 1 if device.index is None else json.dumps([device.index]),
        "trainer.precision": PRECISIONS[run.dtype],
        "checkpoint.every": sys.maxsize,  # steps: only between epochs
        "trainer.max_epochs": epochs,
        "trainer.check_val_every_n_epoch": epochs,
        "trainer.num_sanity_val_steps": 0,
        "trainer.enable_progress_bar": "false",
        "trainer.callbacks": json.dumps([turns]),
    }
    command.main([*(f"--{name}={value}" for name, value in options.items()), *["--compile"] * run.compiled])


def run_timm(run: EpochRun, answers: int) -> None:
    from timm import optim
    from timm.data.dataset import ImageDataset
    from timm.data.loader import create_loader
    from timm.utils.metrics import AverageMeter

    factory: Any = optim  # its types export nothing
    torch.set_num_threads(run.threads)
    torch.manual_seed(0)
    device = torch.device(run.device)
    settings = Settings(run.dtype, device, run.threads, run.batch, run.epochs, run.compiled)
    model = build_peer(run.shape, run.classes)
    model.load_state_dict(load_file(f"{run.folder}/timm.safetensors"))
    model.to(device, settings.weight_dtype).train()
    if run.compiled:
        model.compile()
    optimizer = factory.create_optimizer_v2(model, "adamw", lr=LR, weight_decay=DECAY, fused=True)
    loader = create_loader(
        ImageDataset(f"{run.folder}/images"),
        input_size=(3, run.shape.pixels, run.shape.pixels),
        batch_size=run.batch,
        is_training=True,
        color_jitter=0.0,
        interpolation="bicubic",
        mean=MEAN,
        std=STD,
        num_workers=run.workers,
        pin_memory=device.type == "cuda",
        img_dtype=settings.weight_dtype,
        device=device,
    )
    turns = Turns(answers, run.device)
    for _ in range(run.epochs):
        turns.begin()
        losses = AverageMeter()
        for images, labels in loader:
            with settings.autocast():
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.update(loss.item(), len(images))
        turns.end()
        turns.answer()


SIDES: Mapping[str, Callable[[EpochRun, int], None]] = {"vitkit": run_fit, "timm": run_timm}


def main(title: str, text: str) -> None:
    values: dict[str, Any] = json.loads(text)
    run = EpochRun(**{**values, "shape": Shape(*values["shape"])})
    answers = os.dup(1)
    os.dup2(2, 1)  # so that the output of a run is no reply
    with suppress(EndOfTurns):
        SIDES[title](run, answers)
