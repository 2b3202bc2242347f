"""Names of earlier versions are understood in model folders, runs, configs of users and options."""

import json
import shutil
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitkit.bundle import model_config, old_names
from vitkit.bundle.old_names import CLASS_PATHS, move_options, update_names, update_options
from vitkit.cli import main
from vitkit.fit.folder_options import read_folders
from vitkit.fit.run_config import CLI
from vitkit.losses import binary_cross_entropy
from vitkit.tasks.classify import Classify
from vitkit.tasks.reconstruction import Reconstruct

ROOT = Path(__file__).parents[2]
BEFORE = ROOT / "tests" / "frozen" / "before"
RECONSTRUCT = "vitkit.tasks.reconstruct.Reconstruct"
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--data.workers=0", "--threads=1")


@pytest.mark.parametrize("old", CLASS_PATHS)
def test_class_is_defined_under_new_path_only(old: str) -> None:
    module, _, name = CLASS_PATHS[old].rpartition(".")
    value = getattr(import_module(module), name)
    assert f"{value.__module__}.{value.__qualname__}" == CLASS_PATHS[old]
    module, _, name = old.rpartition(".")
    with suppress(ModuleNotFoundError):  # an old module that still exists may import the class
        assert getattr(vars(import_module(module)).get(name), "__module__", None) != module


def test_class_paths_change_at_any_depth() -> None:
    before = {
        "model": {"class_path": RECONSTRUCT, "init_args": {"lr": 1e-3, "model": None}},
        "trainer": {"callbacks": [{"class_path": "vitkit.tasks.averaging.EMA"}, True]},
        "text": f"as {RECONSTRUCT}",
    }
    assert update_names(before) == {
        "model": {"class_path": "vitkit.tasks.reconstruction.Reconstruct", "init_args": {"lr": 1e-3, "model": None}},
        "trainer": {"callbacks": [{"class_path": "vitkit.fit.ema.EMA"}, True]},
        "text": f"as {RECONSTRUCT}",
    }


def test_arguments_change_only_for_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_names, "ARGUMENTS", {"a.B": {"old": "new"}})
    config: dict[str, Any] = {"class_path": "a.B", "init_args": {"first": 1, "old": {"old": 2}}}
    assert update_names(config) == {"class_path": "a.B", "init_args": {"first": 1, "new": {"old": 2}}}
    assert update_names([{**config, "class_path": "a.C"}]) == [{**config, "class_path": "a.C"}]
    assert [*update_names(config)["init_args"]] == ["first", "new"]


def test_arguments_move_into_groups_and_groups_stay() -> None:
    old = {"size": [4, 6], "crop": 0.5, "augment": [1], "augment_tensors": [2], "on_error": "skip", "batch": 3}
    new = {
        "preprocess": {"size": [4, 6], "crop": 0.5},
        "augment": {"images": [1], "tensors": [2]},
        "reading": {"on_error": "skip"},
        "batch": 3,
    }
    notes: list[tuple[str, str]] = []
    path = "vitkit.data.images.Images"
    config = {"class_path": path, "init_args": old}
    assert update_names(config, lambda *names: notes.append(names))["init_args"] == new
    assert notes[0] == ("size", "preprocess.size") and len(notes) == 5
    assert update_names({"class_path": path, "init_args": new})["init_args"] == new
    mixed = {"preprocess": {"size": [4, 6]}, "crop": 0.5, "augment": {"images": [1]}, "augment_tensors": [2]}
    assert update_names({"class_path": path, "init_args": mixed})["init_args"] == {
        name: new[name] for name in ("preprocess", "augment")
    }


def test_old_default_is_dropped() -> None:
    for path, label in (("vitkit.data.images.Images", "label"), ("vitkit.data.pairs.Pairs", "text")):
        config = {"class_path": path, "init_args": {"columns": ["file_name", label], "batch": 3}}
        assert update_names(config)["init_args"] == {"batch": 3}
        config = {"class_path": path, "init_args": {"columns": ["path", label]}}
        assert update_names(config)["init_args"] == {"reading": {"columns": ["path", label]}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"distinct": True}, {"draw": {"class_path": "vitkit.data.order.Distinct"}}),
        ({"distinct": False}, {"draw": None}),
        ({"distinct": False, "draw": "a.B"}, {"draw": "a.B"}),
        ({"distinct": True, "draw": "a.B"}, {"distinct": True, "draw": "a.B"}),  # the parser refuses what is left
        ({"distinct": "yes"}, {"distinct": "yes"}),
        ({"distinct": [1]}, {"distinct": [1]}),
        ({"crop": 0.5, "preprocess": {"crop": 0.9}}, {"crop": 0.5, "preprocess": {"crop": 0.9}}),
        ({"crop": 0.5, "preprocess": "a.yaml"}, {"crop": 0.5, "preprocess": "a.yaml"}),
        ({"crop": 0.5, "preprocess": None}, {"crop": 0.5, "preprocess": None}),
    ],
)
def test_old_arguments_move_unless_the_present_one_is_given(old: dict[str, Any], new: dict[str, Any]) -> None:
    for path in ("vitkit.data.pairs.Pairs", "Pairs"):
        assert update_names({"class_path": path, "init_args": old})["init_args"] == new
    assert update_names({"data": old})["data"] == new


def test_overlay_without_class_path_is_updated() -> None:
    overlay = {"data": {"init_args": {"context": 16, "whole": True}}, "model": {"init_args": {"context": 16}}}
    assert update_names(overlay) == {
        "data": {"init_args": {"tokenizer": {"context": 16, "whole": True}}},
        "model": {"init_args": {"context": 16}},
    }
    other = {"data": {"class_path": "a.Texts", "init_args": {"context": 16}}}
    assert update_names(other) == other


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--data.size=[4, 6]", "--data.fold=1"], ["--data.preprocess.size=[4, 6]", "--data.fold=1"]),
        (["--data.init_args.size", "[4, 6]", "--run=x"], ["--data.preprocess.size=[4, 6]", "--run=x"]),
        (
            ["--data.augment+=a.B", "--data.augment_tensors=[]"],
            ["--data.augment.images+=a.B", "--data.augment.tensors=[]"],
        ),
        (["--data.augment={images: []}"], ["--data.augment={images: []}"]),
        (["--data.distinct=true"], ['--data.draw={"class_path": "vitkit.data.order.Distinct"}']),
        (["--data.distinct=false", "--data.on_error", "skip"], ["--data.draw=null", "--data.reading.on_error=skip"]),
        (["--data.draw=a.B", "--data.distinct=false"], ["--data.draw=a.B"]),
        (["--data.draw=a.B", "--data.distinct", "true"], ["--data.draw=a.B", "--data.distinct=true"]),
        (["--data.distinct=maybe"], ["--data.distinct=maybe"]),
        (["--data.preprocess.size=[4, 6]", "--model.size=3"], ["--data.preprocess.size=[4, 6]", "--model.size=3"]),
        (["--data.size"], ["--data.size"]),
    ],
)
def test_options_move_into_groups(old: list[str], new: list[str]) -> None:
    assert move_options(old) == new


@pytest.mark.soak
def test_old_config_and_options_give_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = yaml.safe_load((ROOT / "configs" / "contrast_openmoji.yaml").read_text("utf-8"))
    data = recipe["data"]["init_args"]
    flat = {**data, **data.pop("preprocess"), "augment": data["augment"]["images"], "distinct": True}
    recipe["data"]["init_args"] = {name: flat[name] for name in flat if name not in ("draw", "preprocess")}
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    before = CLI([f"--config={tmp_path / 'old.yaml'}", "--data.context=9", "--data.crop=0.5"])
    notes = capsys.readouterr().out
    assert notes.count("note: ") == notes.count("\n") == 7  # size, mean, std, augment, distinct and the two options
    assert "note: data.context is now data.tokenizer.context; the old name is read until the next release\n" in notes
    options = ["--data.tokenizer.context=9", "--data.preprocess.crop=0.5"]
    after = CLI([f"--config={ROOT / 'configs' / 'contrast_openmoji.yaml'}", *options])
    assert "note" not in capsys.readouterr().out
    assert before.config.data == after.config.data


def test_class_paths_change_in_option_values_and_json() -> None:
    new = CLASS_PATHS[RECONSTRUCT]
    options = ["--model", RECONSTRUCT, f"--model={RECONSTRUCT}", f'--model={{"class_path":"{RECONSTRUCT}"}}']
    assert update_options(options) == ["--model", new, f"--model={new}", f'--model={{"class_path":"{new}"}}']
    others = [f"--run=runs/{RECONSTRUCT}", f"--run={RECONSTRUCT}/1", f"--model=my.{RECONSTRUCT}", f"{RECONSTRUCT}2"]
    assert update_options(others) == others


def test_model_folder_with_old_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(BEFORE / "classify" / "model", tmp_path / "model")
    path = tmp_path / "model" / "config.yaml"
    path.write_text(path.read_text("utf-8").replace("vitkit.nn.Encoder", "vitkit.trunk.Encoder"), "utf-8")
    with pytest.raises(ValueError, match="got 'vitkit.trunk.Encoder'"):
        model_config.build_model(model_config.read_yaml(path))
    monkeypatch.setattr(old_names, "CLASS_PATHS", {"vitkit.trunk.Encoder": "vitkit.nn.Encoder"})
    before = model_config.read_yaml(BEFORE / "classify" / "model" / "config.yaml")
    assert model_config.read_yaml(path) == before


def write_pretraining_config(folder: Path) -> Path:
    """Write a config that pretrains a tiny MAE, with the old class path of its task, and return its path."""
    config = yaml.safe_load((ROOT / "configs" / "pretrain_mae_mnist5k.yaml").read_text("utf-8"))
    config["model"]["class_path"] = RECONSTRUCT
    arguments = config["model"]["init_args"]
    arguments |= {"probe_every": 0, "pictures_every": 0}
    for part in ("encoder", "decoder"):
        arguments["model"]["init_args"][part]["init_args"] |= {"dim": 16, "depth": 1, "heads": 2}
    config["trainer"] |= {"max_epochs": 1, "limit_train_batches": 1, "limit_val_batches": 2}
    config["model"]["init_args"]["schedule"]["init_args"]["warmup"] = 0
    (folder / "old.yaml").write_text(yaml.safe_dump(config), "utf-8")
    return folder / "old.yaml"


def test_fit_saves_present_class_path_of_old_config(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [f"--config={write_pretraining_config(tmp_path)}", f"--run={run}", "--report.baselines=false", *QUIET]
    assert main(["fit", *arguments]) == 0
    assert yaml.safe_load((run / "config.yaml").read_text("utf-8"))["model"]["class_path"] == CLASS_PATHS[RECONSTRUCT]


def test_options_and_nested_configs_may_use_old_paths(tmp_path: Path) -> None:
    recipe = str(ROOT / "configs" / "classify_digits.yaml")
    loss = "vitkit.losses.labels.binary_cross_entropy"
    task = CLI(["--config", recipe, f"--model.loss={loss}"]).model
    assert isinstance(task, Classify) and task.custom_loss is binary_cross_entropy
    config = yaml.safe_load(write_pretraining_config(tmp_path).read_text("utf-8"))
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(config["model"]), "utf-8")
    (tmp_path / "nested.yaml").write_text(yaml.safe_dump({**config, "model": "task.yaml"}), "utf-8")
    nested = CLI(["--config", str(tmp_path / "nested.yaml")]).model
    inline = CLI(["--config", str(tmp_path / "old.yaml"), f"--model={json.dumps(config['model'])}"]).model
    assert isinstance(nested, Reconstruct) and isinstance(inline, Reconstruct)


def test_pretrained_accepts_old_path_of_task(tmp_path: Path) -> None:
    config = write_pretraining_config(tmp_path)
    assert read_folders([f"--config={config}"]).task == CLASS_PATHS[RECONSTRUCT]
    folder = BEFORE / "reconstruct" / "model"
    data = yaml.safe_load(config.read_text("utf-8"))["data"]
    short = {"model": {"class_path": RECONSTRUCT, "init_args": {"lr": 1e-3}}, "data": data}
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(short), "utf-8")
    assert isinstance(CLI([f"--config={tmp_path / 'short.yaml'}", f"--pretrained={folder}"]).model, Reconstruct)


def test_run_with_old_names_resumes_and_reports_only_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = [f"--config={write_pretraining_config(tmp_path)}", f"--run={run}", "--report.baselines=false", *QUIET]
    assert main(["fit", *arguments]) == 0
    path = run / "config.yaml"
    path.write_text(path.read_text("utf-8").replace(CLASS_PATHS[RECONSTRUCT], RECONSTRUCT), "utf-8")
    assert main(["fit", *arguments, "--model.lr=0.5"]) == 1
    assert "got model.lr (was " in (error := capsys.readouterr().err) and "class_path" not in error
    assert main(["fit", *arguments, "--trainer.max_epochs=2"]) == 0
    assert "resuming" in capsys.readouterr().out
    assert RECONSTRUCT not in path.read_text("utf-8")
