"""Run every command and every example of the README, with training shortened by --debug."""

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
COMMANDS = [
    line.split("#")[0]
    .split("&&")[-1]
    .strip()
    .replace("YOUR_PICTURES", "pictures")
    .replace("YOUR_PICTURE", "pictures/own")
    .replace("YOUR_TEXTS", "texts")
    for line in LINES
]
FULL_SIZE = ("pretrain_mae_mnist5k",)  # another config fine-tunes this model, so --debug must not shrink it
INSTALL = {'pip install -e ".[demo]"', 'pip install -e ".[test]"'}  # .ci/run runs these and pytest


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the working folder of a reader: configs, pictures in class folders, trained models and a database."""
    workspace = tmp_path_factory.mktemp("reader")
    (workspace / "configs").symlink_to(ROOT / "configs")
    source = load_digits()
    for index in range(40):
        picture = workspace / "pictures" / source.class_names[source.labels[index] % 2] / f"{index}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        source.read_image(index).resize((48, 32), Image.Resampling.NEAREST).save(picture)
    source.read_image(0).save(workspace / "pictures" / "own.png")
    (workspace / "texts").mkdir()
    for number in range(3):
        (workspace / "texts" / f"{number}.txt").write_text(f"text {number}\n" * 40)
    runs = {
        "classify_digits": [],
        "classify_folder": [f"--data.train={workspace}/pictures"],
        "pretrain_mae_mnist5k": ["--trainer.limit_train_batches=3", "--trainer.max_epochs=1", "--model.probe_every=0"],
        "finetune_mnist5k_few": [],
        "contrast_digits": [],
        "contrast_openmoji": [],
        "language_python": [],
    }
    for name, options in runs.items():
        short = [] if name in FULL_SIZE else ["--debug"]
        assert (
            main(["fit", f"--config={ROOT}/configs/{name}.yaml", *short, f"--run={workspace}/runs/{name}", *options])
            == 0
        )
        if short:
            (workspace / "runs" / f"{name}-debug").rename(workspace / "runs" / name)
    assert main(["unpack", "openmoji", str(workspace / "emoji")]) == 0
    assert (
        main(
            [
                "index",
                str(workspace / "emoji"),
                "--model",
                f"{workspace}/runs/contrast_openmoji/model",
                "--db",
                f"{workspace}/emoji.db",
            ]
        )
        == 0
    )
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), workspace / "checkpoint.pth")
    return workspace


def test_readme_and_continuous_integration_install_the_same():
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert {line.split("&&")[0].strip() for line in LINES if line.startswith("pip")} == INSTALL
    assert all(command in script for command in INSTALL)


@pytest.mark.slow
@pytest.mark.parametrize("command", [line for line in COMMANDS if re.match("vitkit|python|uv run --extra demo", line)])
def test_command_of_the_readme_runs(command: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    if re.search(" (timm|openclip|hf):", command.split("--like")[0]):
        pytest.skip("needs the hub; the same code on local folders is tested in tests/convert")
    words = shlex.split(re.sub(r"^(vitkit|python train.py|uv run --extra demo train.py) ", "", command))
    if words[0] in ("fit", "overfit"):
        words += ["--debug", "--trainer.enable_progress_bar=false"]
        words += {"fit": ["--run", f"again/{len(list(workspace.glob('again/*')))}"], "overfit": ["--steps=300"]}[
            words[0]
        ]
    if words[0] == "bench":
        words += ["--models", "ti/16@32", "--pairs=1", "--batch=2", "--dtype=float32"]
    if words[0] == "unpack":
        words[2] += "_again"
    pictures = [str(path) for word in words if "*" in word for path in sorted(Path().glob(word))]
    assert main([word for word in words if "*" not in word] + pictures) == 0


def test_examples_of_the_readme_run(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    names: dict[str, Any] = {}
    class_names: set[tuple[str, ...]] = set()
    for language, text in BLOCKS:
        if language == "python":
            exec(text, names)
            class_names.add(names["bundle"].class_names)
    assert class_names == {tuple("0123456789"), ()}  # the classifier and the CLIP
