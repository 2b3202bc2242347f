from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vitkit.data.images import Images
from vitkit.data.pictures import Batch
from vitkit.fit.overfit import learn, main, verdict
from vitkit.tasks.classify import Classify


class Linear(nn.Module):
    """With a layer that the output leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(64, 10)
        self.spare = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.used(images.flatten(1))


@pytest.fixture
def batch(few: Callable[..., Images]) -> Batch:
    return next(iter(few(batch=8).train_dataloader()))


def verdict_on(model: nn.Module, batch: Batch, data: Images, lr: float, steps: int = 20) -> str:
    task = Classify(model, lr=lr)
    return verdict(task, batch, learn(task, batch, steps), data)


def test_a_batch_is_learnt_and_told_in_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config), "--data.batch", "16", "--model.lr", "0.01", "--model.base_lr", "null"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("ok: loss 2.") and out.count("\n") == 1 and err == ""


def test_a_batch_that_is_not_learnt_has_a_verdict(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config), "--steps", "3"]) == 1
    out, _ = capsys.readouterr()
    assert out.startswith("not learnt: loss 2.3") and out.count("\n") == 1 and "in 3 steps" in out


def test_the_verdict_names_what_is_wrong(batch: Batch, few: Callable[..., Images]) -> None:
    data, flat = few(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert verdict_on(flat, batch, data, lr=0.0) == "the learning rate is 0"
    steep = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Threshold(-1e6, torch.nan))
    assert "the learning rate 1e+06 is too high" in verdict_on(steep, batch, data, lr=1e6)
    assert "guess" in verdict_on(flat, batch, data, lr=1e-7)
    assert "still falling" in verdict_on(flat, batch, data, lr=1e-2, steps=30)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Threshold(torch.inf, torch.nan))
    assert verdict_on(broken, batch, data, lr=1e-2).startswith("it is not finite before the first step")
    unreached = "no gradient reaches 2 of 4 parameters: model.spare.weight, model.spare.bias"
    assert verdict_on(Linear(), batch, data, lr=1e-2) == unreached
    alike = Batch(torch.ones_like(batch.images), torch.zeros_like(batch.labels), batch.indices)
    assert verdict_on(flat, alike, data, lr=1e-7) == "the pictures are all the same"
    twins = Batch(batch.images[[0, 1, 0]], torch.tensor([1, 2, 3]), batch.indices[[0, 1, 0]])
    name = data.source.name(int(batch.indices[0]))
    expected = f"the labels contradict each other: {name} (1) and {name} (3) are the same picture"
    assert verdict_on(flat, twins, data, lr=1e-2) == expected
    assert verdict_on(flat.requires_grad_(False), batch, data, lr=1e-2) == "all 2 parameters are frozen"
