"""The arguments of tiny runs, a second each: the recipes of configs/ with towers of one block. And of imports."""

from collections.abc import Sequence
from pathlib import Path

CONFIGS = Path(__file__).parents[2] / "configs"
QUIET = (
    *("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.precision=32-true"),
    *("--threads=1", "--seed_everything=0", "--data.seed=0", "--data.workers=0"),
)

# What files of weights in before/sources do not say of their models.
OVERRIDES: dict[str, tuple[str, ...]] = {
    "mae.pth": (
        *("--heads=2", "--decoder-heads=2", "--size", "16", "16", "--no-norm-pix"),
        *("--mean", "0.4", "0.5", "0.6", "--std", "0.2", "0.3", "0.4", "--interpolation=bilinear", "--crop=1"),
    ),
    "timm.safetensors": (
        *("--heads=2", "--size", "16", "24"),
        *("--mean", "0.5", "0.5", "0.5", "--std", "0.2", "0.3", "0.4", "--interpolation=bicubic", "--crop=0.875"),
    ),
}


def small(encoder: str) -> tuple[str, ...]:
    """Return the options that make an encoder of a model tiny."""
    return tuple(f"--model.model.{encoder}.{size}" for size in ("dim=16", "depth=1", "heads=2"))


def classify(run: Path | str, epochs: int = 1, configs: Path = CONFIGS) -> list[str]:
    """Return the command that learns to classify digits, 23 steps an epoch, with rotary positions."""
    rotary = ("--model.model.encoder.position=vitkit.Rotary", "--model.model.encoder.position.axes=2")
    options = (*small("encoder"), *rotary, "--model.schedule.warmup=5")
    return command("classify_digits", run, epochs, configs, options)


def reconstruct(run: Path | str, epochs: int = 1, configs: Path = CONFIGS) -> list[str]:
    """Return the command that pretrains an MAE on MNIST, 8 steps an epoch, and probes it."""
    options = (*small("encoder"), *small("decoder"), "--trainer.limit_train_batches=8", "--model.pictures_every=0")
    return command("pretrain_mae_mnist5k", run, epochs, configs, (*options, "--model.probe_every=1"))


def contrast(run: Path | str, epochs: int = 1, configs: Path = CONFIGS) -> list[str]:
    """Return the command that learns digits by their names, 23 steps an epoch, with CLIP's ids and biased heads."""
    options = (*small("image.encoder"), *small("text.encoder"), "--model.varied=20", "--model.model.text.context=8")
    grey = ("--data.preprocess.mean=[0.3]", "--data.preprocess.std=[0.37]")
    heads = ("--model.model.image.head.bias=true", "--model.model.text.head.bias=true")
    return command("contrast_digits", run, epochs, configs, (*options, *grey, *heads, "--data.context=8"))


def contrast_words(run: Path | str, epochs: int = 1, configs: Path = CONFIGS) -> list[str]:
    """Return the command of `contrast` with the vocabulary in ./tokenizer.json, of 24 words that end with id 1."""
    words = ("--data.vocabulary=tokenizer.json", "--model.model.text.vocabulary=24")
    pool = ("--model.model.text.pool=vitkit.EndOfText", "--model.model.text.pool.end=1")
    return [*contrast(run, epochs, configs), *words, *pool, "--report.baselines=false"]


def command(config: str, run: Path | str, epochs: int, configs: Path, options: Sequence[str]) -> list[str]:
    length = (f"--trainer.max_epochs={epochs}", "--trainer.check_val_every_n_epoch=1")
    return ["fit", f"--config={configs / config}.yaml", f"--run={run}", *QUIET, *length, *options]
