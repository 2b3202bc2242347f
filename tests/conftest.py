import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.set_num_threads(1)  # a second thread does not help with tiny tensors
    torch.manual_seed(0)


@pytest.fixture
def randomise() -> Callable[[nn.Module], nn.Module]:
    """A function that draws every parameter in float64, since zeros and ones would hide swapped parameters."""

    def draw(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for parameter in model.double().parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
        return model.eval()

    return draw


@pytest.fixture
def few() -> Callable[..., Any]:
    """A function that returns a few of the digits: 21 for training, 7 for validation."""
    from vitkit.data.images import Images
    from vitkit.data.preprocess import Preprocess

    def load_few(training: int = 21, validation: int = 7, **options: Any) -> Any:
        data = Images("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), **options)
        data.training, data.validation = data.training[:training], data.validation[:validation]
        return data

    return load_few


@pytest.fixture
def model() -> nn.Module:
    from vitkit.models import ViT
    from vitkit.nn import Encoder

    return ViT(Encoder(16, 1, 2), (8, 8), (4, 4), 10, channels=1)


@pytest.fixture
def mae() -> Any:
    from vitkit.models import MAE
    from vitkit.nn import Encoder

    torch.manual_seed(0)
    return MAE(Encoder(16, 1, 2), Encoder(16, 1, 2), (8, 8), (2, 4), channels=1)


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Any]:
    from lightning.pytorch import Trainer

    def build_trainer(epochs: int = 1, **options: Any) -> Any:
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        defaults = {"default_root_dir": tmp_path, "use_distributed_sampler": False, "accelerator": "cpu"}
        return Trainer(
            max_epochs=epochs, **{**quiet, **defaults, "logger": False, "num_sanity_val_steps": 0, **options}
        )

    return build_trainer


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config of 30 steps per epoch with dropout, drop path, augmentation, label smoothing and clipping."""
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
    preprocess = {"size": [8, 8], "mean": [0.5], "std": [0.5]}
    data = {"train": "digits", "preprocess": preprocess, "batch": 48, "augment": {"images": [augment]}}
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


def make_encoder_config(**more: object) -> dict[str, object]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 2, **more}}


IMAGE = {"encoder": make_encoder_config(), "image_size": [16, 24], "patch_size": [8, 8], "outputs": 24}


TEXT = {"encoder": make_encoder_config(causal=True), "context": 12, "outputs": 24}


CONFIG = {
    "class_path": "vitkit.models.CLIP",
    "init_args": {
        "image": {"class_path": "vitkit.models.ViT", "init_args": IMAGE},
        "text": {"class_path": "vitkit.models.TextTower", "init_args": TEXT},
    },
}


@pytest.fixture(scope="session")
def random_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vitkit.bundle import model_config
    from vitkit.bundle.bundle import Bundle
    from vitkit.bundle.folder import save
    from vitkit.data.preprocess import Preprocess
    from vitkit.data.tokenizer import Tokenizer

    torch.manual_seed(0)
    model = model_config.build_model(CONFIG)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "log_scale":
                parameter.normal_(std=0.3)
    preprocess, folder = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3), tmp_path_factory.mktemp("clip")
    save(folder, Bundle(model, CONFIG, preprocess, tokenizer=Tokenizer(12)))
    return folder


@pytest.fixture
def clip_folder(random_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CLIP with random weights that tells images and texts apart; class embeddings are cached in tmp_path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(random_clip, tmp_path / "run" / "clip")
    return tmp_path / "run" / "clip"


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """The folder of a text tower with random weights, without an image tower."""
    from vitkit.bundle import model_config
    from vitkit.bundle.bundle import Bundle
    from vitkit.bundle.folder import save
    from vitkit.data.tokenizer import Tokenizer

    config = {"class_path": "vitkit.models.TextTower", "init_args": TEXT}
    save(tmp_path / "text", Bundle(model_config.build_model(config), config, None, tokenizer=Tokenizer(12)))
    return tmp_path / "text"


@pytest.fixture
def decoder_folder(tmp_path: Path) -> Path:
    """The folder of a text decoder with random weights and a vocabulary of bytes."""
    from vitkit.bundle import model_config
    from vitkit.bundle.bundle import Bundle
    from vitkit.bundle.folder import save
    from vitkit.data.tokenizer import Tokenizer

    args = {"encoder": make_encoder_config(causal=True), "vocabulary": 257, "context": 48}
    config = {"class_path": "vitkit.TextDecoder", "init_args": args}
    model = model_config.build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    save(tmp_path / "decoder", Bundle(model, config, None, tokenizer=Tokenizer(48, vocabulary="bytes")))
    return tmp_path / "decoder"
