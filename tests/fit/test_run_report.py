from collections.abc import Callable
from pathlib import Path

from lightning.pytorch import Trainer
from torch import nn

from vitkit.data.images import Images
from vitkit.fit.run_report import Report, table
from vitkit.tasks.classify import Classify
from vitkit.tasks.task import Outcome

EFFORT = {"epochs": 3, "steps": 60, "steps_since_resumed": 60, "seconds": 9.6, "samples_per_second": 1234.5}


def test_the_last_epoch_comes_first_and_the_baselines_beside_it(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    task = Classify(model, lr=1.0)
    trainer().validate(task, datamodule=few(batch=4, validation=30), verbose=False)
    task.metrics = {"val/loss": 0.1, "val/accuracy": 0.98, "val/recall": 0.97}
    outcome = task.outcome(tmp_path, "averaged weights, last epoch", 0.99, False)
    lines = table(outcome, EFFORT, "pictures").splitlines()
    assert lines[0] == "accuracy on 30 pictures held out"
    assert lines[1].split("  ")[0] == "averaged weights, last epoch" and lines[1].endswith(" 98.00%")
    assert lines[2].split("  ")[0] == "mean recall of the classes" and lines[2].endswith(" 97.00%")
    assert lines[3].split("  ")[0] == "the best epoch, picked in hindsight" and lines[3].endswith(" 99.00%")
    assert lines[4].split("  ")[0] == "most frequent class" and lines[4].endswith("%")
    assert lines[5] == "3 epochs, 60 steps, 10 s, 1,234 pictures/s"
    told = f"{tmp_path}/confusion.png shows what is taken for what; vitkit predict {tmp_path}/model PICTURES"
    assert outcome.following == told and (tmp_path / "confusion.png").exists()


def test_a_resumed_run_tells_its_own_part() -> None:
    resumed = table(Outcome("title", [], {}, ""), {**EFFORT, "steps_since_resumed": 20}, "texts")
    assert resumed.splitlines() == ["title", "3 epochs, 60 steps (20 since resumed), 10 s, 1,234 texts/s"]


def test_a_resumed_run_still_knows_what_it_left_out() -> None:
    before, after = Report(), Report()
    before.skipped = dict.fromkeys(["b.png is broken", "a.png is broken"])
    after.load_state_dict(before.state_dict())
    assert [*after.skipped] == ["a.png is broken", "b.png is broken"]
