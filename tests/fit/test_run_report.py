from collections.abc import Callable
from pathlib import Path

from lightning.pytorch import Trainer
from torch import nn

from vitkit.data.images import Images
from vitkit.data.omissions import Omissions
from vitkit.fit.run_report import Report, format_run_summary, report_omissions
from vitkit.tasks.classify import Classify
from vitkit.tasks.task import RunSummary

EFFORT = {"epochs": 3, "steps": 60, "steps_since_resumed": 60, "seconds": 9.6, "samples_per_second": 1234.5}


def test_table_starts_with_the_last_epoch_and_ends_with_baselines(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    task = Classify(model, lr=1.0)
    trainer().validate(task, datamodule=few(batch=4, validation=30), verbose=False)
    task.metrics = {"val/loss": 0.1, "val/accuracy": 0.98, "val/recall": 0.97}
    summary = task.summarize(tmp_path, "last epoch, averaged weights", False)
    lines = format_run_summary(summary, EFFORT, "pictures").splitlines()
    assert lines[0] == "accuracy on the validation set, 30 pictures"
    assert lines[1].split("  ")[0] == "last epoch, averaged weights" and lines[1].endswith(" 98.00%")
    assert lines[2].split("  ")[0] == "most frequent class" and lines[2].endswith("%")
    assert lines[3].split("  ")[0] == "mean recall over classes" and lines[3].endswith(" 97.00%")
    assert lines[-1] == "3 epochs, 60 steps, 10 s, 1,234 pictures/s"
    commands = f"confusion matrix: {tmp_path}/confusion.png; vitkit predict {tmp_path}/model PICTURES"
    assert summary.next_commands == commands and (tmp_path / "confusion.png").exists()


def test_table_of_a_resumed_run_has_the_steps_since_then() -> None:
    resumed = format_run_summary(RunSummary("title", [], {}, ""), {**EFFORT, "steps_since_resumed": 20}, "texts")
    assert resumed.splitlines() == ["title", "3 epochs, 60 steps (20 since resumed), 10 s, 1,234 texts/s"]


def test_unreadable_samples_are_listed_whatever_their_names(few: Callable[..., Images], tmp_path: Path) -> None:
    omissions = Omissions()
    omissions.unreadable = ["caf\udce9.png is broken"]
    report_omissions(omissions, tmp_path / "unreadable.txt", few())
    assert (tmp_path / "unreadable.txt").read_text() == "caf\\udce9.png is broken\n"


def test_unreadable_samples_survive_a_resume() -> None:
    before, after = Report(), Report()
    before.unreadable = dict.fromkeys(["b.png is broken", "a.png is broken"])
    after.load_state_dict(before.state_dict())
    assert [*after.unreadable] == ["a.png is broken", "b.png is broken"]
