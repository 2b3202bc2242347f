"""One epoch of each kind of training: what is written, and the losses."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import classify

from vitkit.cli import main

Recorded = Callable[..., None]

KINDS = ("classify", "reconstruct", "contrast")
each_kind = pytest.mark.parametrize("kind", KINDS)


def keys(value: Any) -> Any:
    """Return a JSON value with the names of types in place of numbers and texts, of a list those that differ."""
    if isinstance(value, dict):
        return {key: keys(item) for key, item in value.items()}
    if isinstance(value, list):
        kinds = [keys(item) for item in value]
        return [kind for index, kind in enumerate(kinds) if kind not in kinds[:index]]
    return type(value).__name__


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.csv, without empty cells."""
    with (run / "metrics.csv").open(newline="") as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


@each_kind
def test_losses_of_an_epoch_are_the_same(kind: str, trained: Path, recorded: Recorded) -> None:
    recorded(f"metrics_{kind}", metrics(trained / kind), tolerance=1e-4)


@each_kind
def test_report_has_the_same_keys(kind: str, trained: Path, recorded: Recorded) -> None:
    recorded(f"report_{kind}", keys(load(trained / kind / "report.json")))


@each_kind
def test_configs_have_the_same_text(kind: str, trained: Path, recorded: Recorded) -> None:
    """That of the run, and that of the model folder."""
    configs = {name: (trained / kind / name).read_text("utf-8") for name in ("config.yaml", "model/config.yaml")}
    recorded(f"configs_{kind}", {name: text.splitlines() for name, text in configs.items()})


@each_kind
def test_run_and_model_folder_hold_the_same_files(kind: str, trained: Path, recorded: Recorded) -> None:
    run = trained / kind
    names = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if "tfevents" not in path.name)
    recorded(f"files_{kind}", names)


@each_kind
def test_model_folder_says_the_same_of_what_belongs_to_the_model(kind: str, trained: Path, recorded: Recorded) -> None:
    folder = trained / kind / "model"
    recorded(f"folder_{kind}", {path.name: load(path) for path in sorted(folder.glob("*.json"))})


def test_training_on_sets_of_labels_is_the_same(
    before: Path, tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a table: pictures that show several of three words, one, or none."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(before / "pictures", "pictures")
    labels = ["red|dark", "blue", "", "red", "blue|dark", "dark", "red|blue", "", "red", "blue", "red|dark", "dark"]
    paths = sorted(Path("pictures").glob("?/*.png"))
    rows = [f"{path},{names}" for path, names in zip(paths, labels, strict=True)]
    Path("table.csv").write_text("\n".join(["file_name,label", *rows, ""]), "utf-8")
    options = ("--data.train=table.csv", "--data.folds=3", "--data.batch=2", "--report.baselines=false")
    sets = ("--model.label_smoothing=0", "--model.schedule.warmup=0")
    assert main([*classify("sets"), *options, *sets]) == 0
    recorded("metrics_sets", metrics(Path("sets")), tolerance=1e-4)
    recorded("report_sets", keys(load(Path("sets/report.json"))))
    recorded("folder_sets", {path.name: load(path) for path in sorted(Path("sets/model").glob("*.json"))})
    assert main(["evaluate", "sets/model", "table.csv", "--no-probe", "--device=cpu", "--out=evaluation"]) == 0
    recorded("evaluation_sets", keys(load(Path("evaluation/report.json"))))


def test_heads_report_has_the_same_keys_and_statistics(trained: Path, tmp_path: Path, recorded: Recorded) -> None:
    options = ("--fold=0", "--pictures=16", "--device=cpu", f"--out={tmp_path / 'heads'}", "--against=untrained")
    assert main(["heads", str(trained / "classify" / "model"), "digits", *options]) == 0
    report = load(tmp_path / "heads" / "heads.json")
    recorded("heads_keys", keys(report))
    recorded("heads_statistics", report["statistics"], tolerance=1e-4)
    header, *rows = (tmp_path / "heads" / "heads.csv").read_text("utf-8").splitlines()
    recorded("heads_columns", [*header.split(","), len(rows)])
    recorded("heads_files", sorted(path.name for path in (tmp_path / "heads").iterdir()))


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("classify", ("evaluate", "classify/model", "digits", "--fold=0", "--knn")),
        ("reconstruct", ("evaluate", "reconstruct/model", "mnist5k", "--fold=0", "--knn", "--probed=100")),
        ("contrast", ("evaluate", "contrast/model", "digits", "--fold=0")),
        ("zero_shot", ("zero-shot", "contrast/model", "digits", "--fold=0", "--no-cache", "--templates={}")),
    ],
)
def test_evaluation_has_the_same_keys(
    kind: str,
    command: tuple[str, ...],
    trained: Path,
    tmp_path: Path,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(trained)
    assert main([*command, f"--out={tmp_path / 'out'}", "--device=cpu"]) == 0
    folder = tmp_path / "out"
    texts = {path.name: keys(load(path)) for path in sorted(folder.glob("*.json"))}
    tables = {path.name: path.read_text("utf-8").splitlines()[0] for path in sorted(folder.glob("*.csv"))}
    recorded(f"evaluation_{kind}", {"files": sorted(path.name for path in folder.iterdir()), **texts, **tables})
