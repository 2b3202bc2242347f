import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from vitkit import losses
from vitkit.data.data_module import Data
from vitkit.data.images import Images
from vitkit.data.pairs import PairBatch, Pairs
from vitkit.data.pictures import Batch
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.fit.overfit import diagnose, main, train_on_batch
from vitkit.models import CLIP, MAE, TextTower, ViT
from vitkit.nn import Encoder
from vitkit.tasks.classify import Classify
from vitkit.tasks.contrast import Contrast
from vitkit.tasks.reconstruction import Reconstruct
from vitkit.tasks.task import Loss, RunSummary, Task


class Linear(nn.Module):
    """A linear classifier with an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(64, 10)
        self.spare = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.used(images.flatten(1))


@pytest.fixture
def batch(few: Callable[..., Images]) -> Batch:
    return next(iter(few(batch=8).train_dataloader()))


def diagnose_model(model: nn.Module, batch: Batch, data: Images, lr: float, steps: int = 20) -> str:
    task = Classify(model, lr=lr)
    task.bind(data)
    return diagnose(task, batch, train_on_batch(task, batch, steps), data)


def test_overfitted_batch_is_reported_in_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config), "--data.batch", "16", "--model.lr", "0.01", "--model.base_lr", "null"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("ok: loss 2.") and out.count("\n") == 1 and err == ""


def test_batch_that_is_not_overfitted_has_a_diagnosis(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config), "--steps", "3"]) == 1
    out, _ = capsys.readouterr()
    assert out.startswith("not overfitted: loss 2.3") and out.count("\n") == 1 and "in 3 steps" in out


def test_unreadable_batch_is_refused(config: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "pictures" / name / f"{number}.png").write_text("no picture")
    with pytest.raises(ValueError, match="^batch must hold samples that can be read, got none; see data.reading"):
        main(["--config", str(config), f"--data.train={tmp_path / 'pictures'}", "--data.reading.on_error=skip"])


def test_diagnosis_names_the_cause(batch: Batch, few: Callable[..., Images]) -> None:
    data, flat = few(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert diagnose_model(flat, batch, data, lr=0.0) == "the learning rate is 0"
    steep = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Threshold(-1e6, torch.nan))
    assert "the learning rate 1e+06 is too high" in diagnose_model(steep, batch, data, lr=1e6)
    assert "the chance level" in diagnose_model(flat, batch, data, lr=1e-7)
    assert "still falling" in diagnose_model(flat, batch, data, lr=1e-2, steps=30)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Threshold(torch.inf, torch.nan))
    assert diagnose_model(broken, batch, data, lr=1e-2).startswith("the loss is not finite before any step")
    unreached = "no gradient reaches 2 of 4 parameters: model.spare.weight, model.spare.bias"
    assert diagnose_model(Linear(), batch, data, lr=1e-2) == unreached
    equal_images = Batch(torch.ones_like(batch.images), torch.zeros_like(batch.labels), batch.indices)
    assert diagnose_model(flat, equal_images, data, lr=1e-7) == "the pictures are all the same"
    contradiction = Batch(batch.images[[0, 1, 0]], torch.tensor([1, 2, 3]), batch.indices[[0, 1, 0]])
    name = data.source.get_name(int(batch.indices[0]))
    expected = f"the labels contradict each other: {name} (1) and {name} (3) are the same picture"
    assert diagnose_model(flat, contradiction, data, lr=1e-2) == expected
    assert diagnose_model(flat.requires_grad_(False), batch, data, lr=1e-2) == "all parameters are frozen"
    diverging = Classify(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU()), lr=1e4)
    diverging.bind(data)
    assert "after 20 steps no parameter has a gradient" in diagnose(
        diverging, batch, train_on_batch(diverging, batch, 20), data
    )
    half = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    half[1].bias.requires_grad_(False)
    assert diagnose_model(half, batch, data, lr=1e-2, steps=30).endswith("30 too few; 1 of 2 parameters are frozen")


class Brightness(Task):
    """A custom task without the optional methods."""

    @property
    def score(self) -> str:
        return "val/error"

    def adapt(self, data: Data) -> None:
        pass

    def compute_loss(self, batch: Batch) -> Loss:
        errors = (self.model(batch.images).mean(1) - batch.images.mean((1, 2, 3))).square()
        return Loss(errors.sum(), len(errors))

    def summarize(self, run: Path, weights: str, baselines: bool) -> RunSummary:
        raise NotImplementedError


def test_custom_task_is_overfitted_and_diagnosed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own: dict[str, Any] = yaml.safe_load(config.read_text())
    own["model"] = {
        "class_path": f"{__name__}.Brightness",
        "init_args": {"lr": 0.01, "model": own["model"]["init_args"]["model"]},
    }
    config.write_text(yaml.safe_dump(own))
    assert main(["--config", str(config)]) == 0
    assert capsys.readouterr().out.startswith("ok: loss ")
    assert main(["--config", str(config), "--model.lr=1e-9", "--steps=3"]) == 1
    assert re.search(r"the loss stays near [\d.]+, the first loss, though", capsys.readouterr().out)


def build_clip(bias: float | None = None) -> CLIP:
    torch.manual_seed(0)
    text = TextTower(Encoder(16, 1, 2, causal=True), 49408, 6, 8)
    return CLIP(ViT(Encoder(16, 1, 2), (8, 8), (4, 4), 8, channels=1), text, bias=bias)


@pytest.fixture
def pair_batch() -> PairBatch:
    return next(iter(pairs().train_dataloader()))


def pairs() -> Pairs:
    return Pairs("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), tokenizer=Tokenizer(context=6), batch=16)


def test_floor_of_equal_captions_is_their_entropy(pair_batch: PairBatch) -> None:
    counts = pair_batch.positives.unique(return_inverse=True, return_counts=True)
    expected = counts[2][counts[1]].float().log().mean().item()
    assert expected > 0.2
    for loss in (losses.softmax, partial(losses.softmax)):
        task = Contrast(build_clip(), lr=1e-2, loss=loss)
        assert task.compute_floor(pair_batch) == pytest.approx(expected, abs=1e-5)
        assert task.compute_chance(pair_batch).loss == pytest.approx(math.log(16))
    task = Contrast(build_clip(-1.0), lr=1e-2, loss=losses.sigmoid)
    assert task.compute_floor(pair_batch) == pytest.approx(0, abs=1e-6)
    share = (pair_batch.positives[:, None] == pair_batch.positives).float().mean().item()
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert task.compute_chance(pair_batch).loss == pytest.approx(16 * entropy, rel=1e-5)


def test_pairs_are_overfitted_to_their_floor(pair_batch: PairBatch) -> None:
    task = Contrast(build_clip(), lr=3e-3)
    trace = train_on_batch(task, pair_batch, 200)
    floor = task.compute_floor(pair_batch)
    assert floor - 1e-3 < trace.losses[-1] < trace.goal == floor + 0.01


def test_diagnosis_names_the_cause_for_pairs(pair_batch: PairBatch) -> None:
    data = pairs()

    def diagnose_run(lr: float, batch: PairBatch = pair_batch, **options: Any) -> str:
        task = Contrast(build_clip(), lr=lr, **options)
        return diagnose(task, batch, train_on_batch(task, batch, 5), data)

    assert diagnose_run(0.0) == "the learning rate is 0"
    assert "the loss stays near 2.773, the loss of equal logits for all pairs" in diagnose_run(1e-8)
    assert diagnose_run(1e-8, freeze=["text.*"]).endswith("; 18 of 39 parameters are frozen")
    other = int((pair_batch.positives != pair_batch.positives[0]).nonzero()[0])
    images = pair_batch.images.clone()
    images[other] = images[0]
    names = [data.source.get_name(int(pair_batch.indices[row])) for row in (0, other)]
    expected = f"the captions contradict each other: {names[0]} and {names[1]} are the same picture"
    assert diagnose_run(1e-2, pair_batch._replace(images=images)) == expected


@pytest.mark.parametrize("deviation", [0.1, 1.0])
def test_mean_of_patches_does_not_reach_the_goal(mae: MAE, batch: Batch, deviation: float) -> None:
    """Pixels with a standard deviation of 0.1 have a squared error of 0.01 without any learning."""
    mae.norm_pix = False
    nn.init.zeros_(mae.decoder.pixels.weight)
    nn.init.zeros_(mae.decoder.pixels.bias)
    task = Reconstruct(mae, lr=0.0, probe_every=0)
    batch = batch._replace(images=deviation * torch.randn_like(batch.images))
    trace = train_on_batch(task, batch, 0)
    assert trace.losses[0] > 1.5 * trace.goal and trace.floor == 0
    assert trace.goal == pytest.approx(task.compute_chance(batch).loss / 2)


def test_diagnosis_names_the_cause_for_an_mae(mae: MAE, batch: Batch, few: Any) -> None:
    def diagnose_run(lr: float, batch: Batch = batch) -> str:
        task = Reconstruct(mae, lr=lr, probe_every=0)
        return diagnose(task, batch, train_on_batch(task, batch, 3), few())

    assert diagnose_run(0.0) == "the learning rate is 0"
    assert re.search(r"the loss stays near 0\.\d+, the loss of each patch's mean over the pictures", diagnose_run(1e-8))
    assert diagnose_run(1e-3, batch._replace(images=batch.images[:1].expand_as(batch.images))) == (
        "the pictures are all the same"
    )
    mae.requires_grad_(False)
    assert diagnose_run(1e-2) == "all parameters are frozen"
