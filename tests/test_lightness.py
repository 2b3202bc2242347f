"""The imports of commands and the time of `vitkit --help`, measured in new processes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import vitkit

LIGHTNING = {"lightning", "lightning_fabric", "pytorch_lightning"}
# Libraries that take long to import and that most commands do not need.
HEAVY = LIGHTNING | {"timm", "open_clip", "torchvision", "transformers", "datasets", "lancedb", "matplotlib", "sklearn"}
MODEL = {"nn", "models", "data", "bundle", "convert"}
COMMAND = {"cli", "commands", "support"}
SUBPACKAGES = {
    "learn": COMMAND | MODEL | {"interpret", "pages"},
    "predict": COMMAND | MODEL | {"inference"},
    "search": COMMAND | MODEL | {"inference", "retrieval"},
}
# Numbers of vitkit's modules: the measured ones plus two.
FILES = {"learn": 71, "learn MODEL": 71, "predict": 61, "search": 85}
# Modules for foreign models and for other sources than folders, which a model folder and pictures do not need.
FORBIDDEN = (
    *("vitkit.convert.importer", "vitkit.convert.write", "vitkit.data.sources.open"),
    *("vitkit.convert.timm", "vitkit.convert.hf", "vitkit.convert.openclip"),
)
HELP_SECONDS = 0.2  # 0.02 on an idle machine

RUN = """
import json, sys
from vitkit.cli import main
status = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump({"status": status, "modules": list(sys.modules)}, file)
"""
HELP = "import time; from vitkit.cli import main; main(['--help']); print(time.process_time())"

Run = Callable[..., list[str]]


def measure_seconds(code: str) -> float:
    """Return the user and system time of a process, to which other processes add little."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout.splitlines()[-1])


def test_package_imports_neither_torch_nor_lightning() -> None:
    code = "import sys, vitkit; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "vitkit" in modules
    assert not ({"torch", "numpy"} | LIGHTNING) & set(modules)


def test_help_takes_a_fifth_of_a_second_at_most() -> None:
    measure_seconds(HELP)  # compiles
    assert median(measure_seconds(HELP) for _ in range(3)) < HELP_SECONDS
    assert measure_seconds(f"import torch; {HELP}") > HELP_SECONDS  # the limit detects an import of torch


def make_encoder_config(**arguments: object) -> dict[str, object]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 1, "heads": 2, **arguments}}


def write_model(folder: Path, model: nn.Module, config: object, **files: object) -> None:
    """Write a model folder by hand, so that the measured imports do not depend on how it is saved."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    preprocess = {"size": [16, 24], "mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "crop": 1.0}
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    for name, content in {"preprocess": preprocess, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with images, a classifier and a CLIP."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("workspace")
    (root / "images").mkdir()
    for number in range(3):
        Image.effect_noise((30, 20), 50).convert("RGB").save(root / "images" / f"{number}.png")

    def make_vit_config(outputs: int) -> dict[str, object]:
        sizes = {"image_size": [16, 24], "patch_size": [8, 8], "outputs": outputs}
        return {"class_path": "vitkit.models.ViT", "init_args": {"encoder": make_encoder_config(), **sizes}}

    text = {"encoder": make_encoder_config(causal=True), "context": 12, "outputs": 24}
    towers = {"image": make_vit_config(24), "text": {"class_path": "vitkit.models.TextTower", "init_args": text}}
    vit = vitkit.ViT(vitkit.Encoder(32, 1, 2), (16, 24), (8, 8), 2)
    clip = vitkit.CLIP(
        vitkit.ViT(vitkit.Encoder(32, 1, 2), (16, 24), (8, 8), 24),
        vitkit.TextTower(vitkit.Encoder(32, 1, 2, causal=True), context=12, outputs=24),
    )
    write_model(root / "classifier", vit, make_vit_config(2), classes=["cat", "dog"])
    config = {"class_path": "vitkit.models.CLIP", "init_args": towers}
    tokenizer = {"vocabulary": "clip", "context": 12, "whole": False}
    write_model(root / "clip", clip, config, classes=[], text=tokenizer)
    return root


@pytest.fixture
def run(workspace: Path, tmp_path: Path) -> Run:
    """Return a function that runs a command and returns the names of the modules that it imported."""

    def run(*arguments: str) -> list[str]:
        out = tmp_path / "modules.json"
        subprocess.run([sys.executable, "-c", RUN, str(out), *arguments], cwd=workspace, check=True)
        answer = json.loads(out.read_text())
        assert answer["status"] == 0
        return answer["modules"]

    return run


def find_surplus(command: str, modules: list[str]) -> list[str]:
    """Return the unneeded imports of a command: other subpackages, forbidden modules, too many modules."""
    names = [name for name in modules if name.split(".")[0] == "vitkit"]
    allowed = SUBPACKAGES[command.split()[0]]
    surplus = [name for name in names if "." in name and name.split(".")[1] not in allowed]
    surplus += [name for name in names if any(f"{name}.".startswith(f"{part}.") for part in FORBIDDEN)]
    if len(names) > FILES[command]:
        surplus.append(f"{len(names)} modules, at most {FILES[command]}")
    return surplus


def test_learn_imports_only_what_a_page_needs(run: Run, tmp_path: Path) -> None:
    modules = run("learn", "-o", str(tmp_path / "learn.html"))
    assert find_surplus("learn", modules) == []
    assert not HEAVY & set(modules)


def test_learn_imports_only_what_a_model_needs(run: Run, tmp_path: Path) -> None:
    modules = run("learn", "classifier", "-o", str(tmp_path / "learn.html"))
    assert find_surplus("learn MODEL", modules) == []
    assert not HEAVY & set(modules)


def test_predict_imports_only_what_a_classifier_needs(run: Run) -> None:
    modules = run("predict", "classifier", "images")
    assert find_surplus("predict", modules) == []
    assert not HEAVY & set(modules)


@pytest.mark.slow
def test_search_imports_only_what_a_query_needs(run: Run, tmp_path: Path) -> None:
    database = str(tmp_path / "database")
    run("index", "images", "--db", database, "--model", "clip")
    modules = run("search", database, "a cat")
    assert "lancedb" in modules
    assert find_surplus("search", modules) == []
    assert not (HEAVY - {"lancedb"} | {"sympy"}) & set(modules)


@pytest.mark.parametrize("command", FILES)
def test_unneeded_imports_are_reported(command: str) -> None:
    enough = ["torch", "vitkit", *(f"vitkit.nn.part{number}" for number in range(FILES[command] - 1))]
    assert find_surplus(command, enough) == []
    assert find_surplus(command, [*enough, "vitkit.models.vit"]) == [
        f"{FILES[command] + 1} modules, at most {FILES[command]}"
    ]
    few = ["vitkit.convert", "vitkit.convert.open", "vitkit.data.sources", "vitkit.data.sources.source"]
    assert find_surplus(command, few) == []
    foreign = [
        "vitkit.convert.timm.catalog",
        "vitkit.convert.hf",
        "vitkit.convert.importer",
        "vitkit.data.sources.open",
    ]
    assert find_surplus(command, [*few, *foreign, "vitkit.fit.command"]) == ["vitkit.fit.command", *foreign]
