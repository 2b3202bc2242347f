from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from torch import nn

from vitkit.data.images import Images
from vitkit.models import MAE, ViT
from vitkit.nn import Encoder

Few = Callable[..., Images]
Fit = Callable[..., Trainer]


@pytest.fixture
def few() -> Few:
    """A few of the digits: 21 to train on, 7 held out."""

    def few(training: int = 21, validation: int = 7, **options: Any) -> Images:
        data = Images("digits", size=(8, 8), mean=(0.5,), std=(0.5,), **options)
        data.training, data.validation = data.training[:training], data.validation[:validation]
        return data

    return few


@pytest.fixture
def model() -> nn.Module:
    return ViT(Encoder(16, 1, 2), (8, 8), (4, 4), 10, channels=1)


@pytest.fixture
def mae() -> MAE:
    torch.manual_seed(0)
    return MAE(Encoder(16, 1, 2), Encoder(16, 1, 2), (8, 8), (2, 4), channels=1)


@pytest.fixture
def trainer(tmp_path: Path) -> Fit:
    def trainer(epochs: int = 1, **options: Any) -> Trainer:
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        owned = {"default_root_dir": tmp_path, "use_distributed_sampler": False, "accelerator": "cpu"}
        return Trainer(max_epochs=epochs, **{**quiet, **owned, "logger": False, "num_sanity_val_steps": 0, **options})

    return trainer


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """All that a config may say, in 30 steps an epoch: dropout, drop path, augmentation, smoothing, clipping."""
    affine = {"degrees": 10, "translate": [0.1, 0.1]}
    augment = {"class_path": "torchvision.transforms.v2.RandomAffine", "init_args": affine}
    residual = {"class_path": "vitkit.nn.PreNorm", "init_args": {"dropout": 0.1}}
    encoder = {"dim": 16, "depth": 2, "heads": 2, "drop_path": 0.2, "residual": residual}
    model = {
        "class_path": "vitkit.models.ViT",
        "init_args": {
            "patch_size": [4, 4],
            "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": encoder},
        },
    }
    task = {
        "base_lr": 1e-2,
        "label_smoothing": 0.1,
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"weight_decay": 0.05}},
        "schedule": {"class_path": "vitkit.optim.WarmupCosine", "init_args": {"warmup": 5}},
        "model": model,
    }
    data = {"train": "digits", "size": [8, 8], "mean": [0.5], "std": [0.5], "batch": 48, "augment": [augment]}
    trainer = {"max_epochs": 3, "gradient_clip_val": 1.0, "enable_progress_bar": False, "accelerator": "cpu"}
    content = {
        "model": {"class_path": "vitkit.tasks.classify.Classify", "init_args": task},
        "data": {"class_path": "vitkit.data.images.Images", "init_args": data},
        "trainer": {**trainer, "precision": "32-true"},
        "checkpoint": {"every": 4},
        "threads": 1,
    }
    path = tmp_path / "digits.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
