"""The forms in which commands answer: predict, features, search, zero-shot, attend and describe."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from safetensors import safe_open

from vitkit.cli import main

Recorded = Callable[..., None]

PICTURES = ("before/pictures/a/00.png", "before/pictures/b")


@pytest.fixture(autouse=True)
def folder(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative: they are written beside the answers."""
    monkeypatch.chdir(before.parent)


def cells(text: str) -> list[list[Any]]:
    """Return the rows of CSV, with numbers as numbers."""

    def cell(value: str) -> Any:
        try:
            return int(value) if value.isdigit() else float(value)
        except ValueError:
            return value

    return [[cell(value) for value in row] for row in csv.reader(io.StringIO(text, newline=""))]


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Return what a command prints."""
    capsys.readouterr()
    assert main([*arguments]) == status
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def multilabel(before: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained on sets of labels."""
    folder = tmp_path_factory.mktemp("several") / "timm"
    shutil.copytree(before / "imported" / "timm", folder)
    (folder / "classes.json").write_text(json.dumps({"several": ["cat", "dog", "owl"]}, indent=2) + "\n", "utf-8")
    return folder


def test_predictions_have_the_same_forms(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("predict", "before/imported/timm", *PICTURES, "--device=cpu")
    recorded("predict_csv", cells(printed(capsys, *command, "--format=csv")), tolerance=1e-4)
    recorded("predict_jsonl", lines(printed(capsys, *command, "--format=jsonl", "--top=2")), tolerance=1e-5)
    recorded("predict_text", printed(capsys, *command, "--top=1").splitlines())


def test_predictions_of_sets_of_labels_have_the_same_forms(
    multilabel: Path, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("predict", str(multilabel), *PICTURES, "--device=cpu")
    rows = cells(printed(capsys, *command, "--format=csv"))
    probabilities = [[float(value) for value in str(row[2]).split("|") if value] for row in rows[1:]]
    recorded("predict_sets_csv", [rows[0], *([row[0], row[1], row[3]] for row in rows[1:])])
    recorded("predict_sets_probabilities", probabilities, tolerance=1e-4)
    recorded("predict_sets_jsonl", lines(printed(capsys, *command, "--format=jsonl")), tolerance=1e-5)


def test_unreadable_picture_has_the_same_forms(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("predict", "before/imported/timm", "before/pictures/broken.png", "--device=cpu")
    recorded("unreadable_csv", cells(printed(capsys, *command, "--format=csv", status=1)))
    recorded("unreadable_jsonl", lines(printed(capsys, *command, "--format=jsonl", status=1)))


def described(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the type and shape of each array, and of numbers the first row."""
    return {
        name: {"dtype": str(array.dtype), "shape": [*array.shape], "first": array[:1].ravel()[:16].tolist()}
        for name, array in arrays.items()
    }


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("pooled", ("classify/model", "digits")),
        ("dense", ("imported/timm", "before/pictures/a", "--unlabelled", "--dense")),
        ("layers", ("imported/timm", "before/pictures/a", "--unlabelled", "--layers", "0", "-1", "--dtype=float16")),
        ("clip", ("contrast/model", "before/pictures/a", "--unlabelled")),
        ("mae", ("reconstruct/model", "before/pictures/a", "--unlabelled")),
    ],
)
def test_features_have_the_same_forms(
    name: str, arguments: tuple[str, ...], tmp_path: Path, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    model, *rest = arguments
    command = ("features", f"before/{model}", *rest, "--device=cpu")
    text = printed(capsys, *command, f"--out={tmp_path / 'x.npz'}")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        recorded(f"features_{name}", {"printed": text.splitlines(), **described(dict(arrays))}, tolerance=1e-3)


def test_features_in_other_files_have_the_same_forms(tmp_path: Path, recorded: Recorded) -> None:
    command = ("features", "before/imported/timm", "before/pictures/a", "--unlabelled", "--device=cpu", "--dense")
    for suffix in ("parquet", "safetensors"):
        assert main([*command, f"--out={tmp_path / 'x'}.{suffix}"]) == 0
    table = parquet.read_table(tmp_path / "x.parquet")
    columns = {field.name: str(field.type) for field in table.schema}
    metadata = {key.decode(): json.loads(value) for key, value in (table.schema.metadata or {}).items()}
    rows = {name: table[name].to_pylist()[:2] for name in ("index", "name")}
    recorded("features_parquet", {"columns": columns, "metadata": metadata, "rows": rows, "count": len(table)})
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        recorded(
            "features_safetensors",
            {**described(tensors), "metadata": dict(sorted(file.metadata().items()))},
            tolerance=1e-3,
        )


def test_results_of_search_have_the_same_forms(
    tmp_path: Path, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("before/pictures.db", tmp_path / "db")
    command = ("search", str(tmp_path / "db"), "a picture of two", "--model=before/contrast/model", "--device=cpu")
    recorded("search_csv", cells(printed(capsys, *command, "--top-k=3", "--format=csv")), tolerance=1e-3)
    recorded("search_text", [line.split("  ")[1:] for line in printed(capsys, *command, "--top-k=3").splitlines()])
    near = printed(capsys, *command, "--near-duplicates", "--near=0.98", "--format=csv")
    recorded("search_near_csv", cells(near), tolerance=1e-3)
    near = printed(capsys, *command, "--near-duplicates", "--near=0.98", "--format=json")
    recorded("search_near_json", json.loads(near), tolerance=1e-3)


def test_zero_shot_answers_have_the_same_forms(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("zero-shot", "before/contrast/model", "before/pictures/a", "--unlabelled", "--no-cache", "--device=cpu")
    classes = ("--classes", "red", "green", "blue", "--templates", "a picture of {}")
    recorded("zero_shot_csv", cells(printed(capsys, *command, *classes, "--format=csv")), tolerance=1e-4)
    recorded("zero_shot_jsonl", lines(printed(capsys, *command, *classes, "--format=jsonl")), tolerance=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("raw", ("imported/timm", "--heads", "0", "--layers", "0", "-1")),
        ("rollout", ("imported/timm", "--map=rollout")),
        ("relevance", ("imported/timm", "--map=relevance", "--class=dog")),
        ("text", ("contrast/model", "--text", "a picture of two", "red stripes")),
    ],
)
def test_attention_maps_have_the_same_numbers(
    name: str, arguments: tuple[str, ...], tmp_path: Path, recorded: Recorded
) -> None:
    model, *rest = arguments
    command = ("attend", f"before/{model}", "before/pictures/b/05.png", f"--out={tmp_path / 'out'}", "--json", *rest)
    assert main([*command]) == 0
    recorded(f"attend_{name}", json.loads((tmp_path / "out" / "05.json").read_text("utf-8")), tolerance=1e-4)


@pytest.mark.parametrize("model", ["classify", "reconstruct", "contrast"])
def test_description_of_a_model_is_the_same(model: str, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(f"describe_{model}", printed(capsys, "describe", f"before/{model}/model").splitlines())
