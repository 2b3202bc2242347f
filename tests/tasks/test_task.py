import csv
import runpy
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.optim import AdamW
from torch.testing import assert_close

from vitkit.data.data_module import Data
from vitkit.data.images import Images
from vitkit.fit.checkpoint import AtomicIO, Checkpoint
from vitkit.fit.log import CSV
from vitkit.optim import WarmupCosine
from vitkit.tasks.classify import Classify

RANKS = Path(__file__).with_name("ranks.py")


def test_exactly_one_learning_rate_is_given(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="one of lr and base_lr must be given, and not both, got lr=None"):
        Classify(model)
    with pytest.raises(ValueError, match=r"got lr=0.1, base_lr=0.1"):
        Classify(model, lr=0.1, base_lr=0.1)


def test_learning_rate_scales_with_the_batch_and_follows_the_schedule(
    model: nn.Module,
    few: Callable[..., Images],
    trainer: Callable[..., Trainer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def schedule(total: int) -> WarmupCosine:
        return WarmupCosine(total, warmup=1, floor=0.125)

    task = Classify(model, base_lr=0.5, schedule=schedule)
    log = CSV(tmp_path / "metrics.csv", 0)
    trainer(2, accumulate_grad_batches=4, logger=log, log_every_n_steps=1).fit(task, datamodule=few(batch=2))
    printed = capsys.readouterr().out
    assert "lr = base_lr * batch / 256 = 0.5 * 2 * 1 * 4 / 256 = 0.015625\n" in printed
    rows = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    rates = [float(row["lr"]) for row in rows if row["lr"]]
    assert len(rates) == 6  # 11 batches in windows of 4, 4 and 3, twice
    assert_close(rates, [0.015625 * schedule(6)(step) for step in range(6)])
    assert rates[0] == 0.015625 / 2 and rates[-1] == 0.015625 / 8


def test_weight_decay_of_the_optimizer_is_for_matrices_alone(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    def optimizer(parameters, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr, weight_decay=0.3)

    run_trainer = trainer(max_steps=1)
    run_trainer.fit(Classify(model, lr=0.1, optimizer=optimizer), datamodule=few())
    decay = {group["name"]: group["weight_decay"] for group in run_trainer.optimizers[0].param_groups}
    assert decay == {"decayed": 0.3, "plain": 0.0}


def test_accumulated_batches_equal_one_big_batch(few: Callable[..., Images], trainer: Callable[..., Trainer]) -> None:
    """21 samples in steps of 8, 8 and 5, or in windows of 4, 4 and 3 batches."""
    weights = []
    for batch, windows in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        options = {"precision": "64-true", "accumulate_grad_batches": windows, "gradient_clip_val": 0.1}
        trainer(2, **options).fit(Classify(model, lr=0.1, label_smoothing=0.1), datamodule=few(batch=batch))
        weights.append(list(model.parameters()))
    assert_close(weights[0], weights[1], rtol=1e-12, atol=1e-12)


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """21 training samples in batches of 8 and 9 held out: the ranks have unequal numbers of samples and batches."""
    train = runpy.run_path(str(RANKS))["train"]
    train(1, tmp_path / "one.pt")
    subprocess.run([sys.executable, RANKS, "2", tmp_path / "two.pt"], check=True, timeout=120)
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("one.pt", "two.pt"))
    assert_close(two.pop("metrics"), one.pop("metrics"), rtol=1e-6, atol=0)  # logged in float32
    assert set(one["multilabel"]) == {"val/loss", "val/mAP"}
    assert_close(two.pop("multilabel"), one.pop("multilabel"), rtol=1e-6, atol=0)
    assert_close(two, one, rtol=1e-10, atol=1e-12)


class Diverges(nn.Module):
    """A linear classifier whose third batch is not finite."""

    def __init__(self, wrong: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.wrong = wrong
        self.batches = 0

    def forward(self, images: Tensor) -> Tensor:
        self.batches += 1
        logits = self.linear(images.flatten(1))
        return logits if self.batches < 3 else self.wrong(logits)


@pytest.mark.parametrize(
    "wrong",
    [lambda logits: logits * torch.nan, lambda logits: logits + (logits * 0).abs().sqrt()],
    ids=["loss", "norm"],
)
def test_nonfinite_loss_or_norm_names_samples_and_keeps_the_checkpoint(
    wrong: Callable[[Tensor], Tensor],
    few: Callable[..., Images],
    trainer: Callable[..., Trainer],
    tmp_path: Path,
) -> None:
    data = few(batch=3)
    batches = list(data.train_dataloader().sampler)
    stopping = trainer(enable_checkpointing=True, callbacks=[Checkpoint(every=1)], plugins=[AtomicIO()])
    with pytest.raises(
        ValueError, match="loss and gradient must be finite, got loss .*, gradient norm nan at step 2"
    ) as error:
        stopping.fit(Classify(Diverges(wrong), lr=0.1), datamodule=data)
    assert all(f"digits[{pick.sample}]" in str(error.value) for pick in batches[2])
    assert not any(f"digits[{pick.sample}]" in str(error.value) for pick in batches[1])
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 2
    assert all(weight.isfinite().all() for weight in checkpoint["state_dict"].values())


def test_gradients_are_clipped_and_adamw_is_fused_in_mixed_precision(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    mixed = {"precision": "bf16-mixed", "gradient_clip_val": 1.0}
    run_trainer = trainer(**mixed)
    run_trainer.fit(Classify(model, lr=0.1), datamodule=few())
    assert {group["fused"] for group in run_trainer.optimizers[0].param_groups} == {True}
    with pytest.raises(ValueError, match="model.optimizer.fused must be left out where trainer.gradient_clip_val"):
        trainer(**mixed).fit(Classify(model, lr=0.1, optimizer=partial(AdamW, fused=True)), datamodule=few())


def test_run_of_unfused_adamw_resumes_with_fused(
    few: Callable[..., Images], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    def fit(epochs: int, before: Path | None = None, **options: Any) -> Trainer:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()  # Lightning loads weights before it converts
        task = Classify(model, lr=1e-3, schedule=lambda _: WarmupCosine(100), **options)
        run_trainer = trainer(epochs, precision="64-true", plugins=[AtomicIO()])
        run_trainer.fit(task, datamodule=few(batch=5), ckpt_path=before)
        return run_trainer

    fit(1, optimizer=partial(AdamW, foreach=False)).save_checkpoint(tmp_path / "loop.ckpt")
    resumed, whole = fit(2, tmp_path / "loop.ckpt"), fit(2)
    assert {group["fused"] for group in resumed.optimizers[0].param_groups} == {True}
    pair = (dict(run_trainer.lightning_module.named_parameters()) for run_trainer in (resumed, whole))
    assert_close(*pair, rtol=1e-10, atol=1e-12)


class Adaptations(Classify):
    """Counts the calls of adapt."""

    times = 0

    def adapt(self, data: Data) -> None:
        super().adapt(data)
        self.times += 1


def test_task_is_adapted_once_to_its_data(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    data, other = few(), few(validation=30)
    task = Adaptations(model, lr=0.1)
    task.bind(data)
    trainer(1).fit(task, datamodule=data)
    trainer().validate(task, datamodule=data, verbose=False)
    assert task.times == 1 and task.data is data
    trainer().validate(task, datamodule=other, verbose=False)
    assert task.times == 2 and task.data is other


def test_copy_of_a_task_leaves_its_data_out(model: nn.Module, few: Callable[..., Images]) -> None:
    task = Classify(model, lr=0.1)
    task.bind(few())
    with pytest.raises(RuntimeError, match="data must be bound to a task"):
        assert deepcopy(task).data
    assert isinstance(task.data, Images)
