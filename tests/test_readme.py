"""Every command and every example of the README, run; training is shortened by --debug."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image

from vitkit.cli import main
from vitkit.data.demo.built_in import load_digits

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
LINES = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
COMMANDS = [line.split("#")[0].split("&&")[-1].strip() for line in LINES]
UNSHRUNK = ("pretrain_mae_mnist5k",)  # another config describes the same model, and starts from it
INSTALL = {'pip install -e ".[demo]"', 'pip install -e ".[test]"'}  # these two and pytest are what .ci/run does


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader would be: with configs, pictures in class folders, and a trained model."""
    place = tmp_path_factory.mktemp("reader")
    (place / "configs").symlink_to(ROOT / "configs")
    source = load_digits()
    for index in range(40):
        picture = place / "pictures" / source.class_names[source.labels[index] % 2] / f"{index}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        source.read_image(index).resize((48, 32), Image.Resampling.NEAREST).save(picture)
    source.read_image(0).save(place / "pictures" / "own.png")
    runs = {
        "classify_digits": [],
        "classify_folder": [f"--data.train={place}/pictures"],
        "pretrain_mae_mnist5k": ["--trainer.limit_train_batches=3", "--trainer.max_epochs=1", "--model.probe_every=0"],
        "finetune_mnist5k_few": [],
        "contrast_digits": [],
        "contrast_openmoji": [],
    }
    for name, options in runs.items():
        short = [] if name in UNSHRUNK else ["--debug"]
        assert (
            main(["fit", f"--config={ROOT}/configs/{name}.yaml", *short, f"--run={place}/runs/{name}", *options]) == 0
        )
        if short:
            (place / "runs" / f"{name}-debug").rename(place / "runs" / name)
    assert main(["unpack", "openmoji", str(place / "emoji")]) == 0
    assert (
        main(
            [
                "index",
                str(place / "emoji"),
                "--model",
                f"{place}/runs/contrast_openmoji/model",
                "--db",
                f"{place}/emoji.db",
            ]
        )
        == 0
    )
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), place / "checkpoint.pth")
    return place


def test_the_readme_installs_as_continuous_integration_does():
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert {line.split("&&")[0].strip() for line in LINES if line.startswith("pip")} == INSTALL
    assert all(command in script for command in INSTALL)


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if re.match("vitkit|python|uv run --extra demo", c)])
def test_a_command_of_the_readme_runs(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    if re.search(" (timm|openclip|hf):", command.split("--like")[0]):
        pytest.skip("needs the hub; the same code on local folders is tested in tests/foreign")
    words = shlex.split(re.sub(r"^(vitkit|python train.py|uv run --extra demo train.py) ", "", command))
    if words[0] in ("fit", "overfit"):
        words += ["--debug", "--trainer.enable_progress_bar=false"]
        words += {"fit": ["--run", f"again/{len(list(place.glob('again/*')))}"], "overfit": ["--steps=300"]}[words[0]]
    if words[0] == "bench":
        words += ["--models", "ti/16@32", "--pairs=1", "--batch=2", "--dtype=float32"]
    if words[0] == "unpack":
        words[2] += "_again"
    pictures = [str(path) for word in words if "*" in word for path in sorted(Path().glob(word))]
    assert main([word for word in words if "*" not in word] + pictures) == 0


def test_the_examples_of_the_readme_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    names: dict[str, Any] = {}
    class_names: set[tuple[str, ...]] = set()
    for language, text in BLOCKS:
        if language == "python":
            exec(text, names)
            class_names.add(names["bundle"].class_names)
    assert class_names == {tuple("0123456789"), ()}  # of the classifier and of the CLIP
