"""What `vitkit fit` says without a config."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.fit import recipes

CONFIGS = Path(__file__).parents[2] / "configs"


def test_recipes_exist_and_are_named_without_importing_torch() -> None:
    assert all((CONFIGS / f"{name}.yaml").is_file() for name in recipes.RECIPES)
    code = "import sys; from vitkit.cli import main; assert main(sys.argv[1:]) == 1; assert 'torch' not in sys.modules"
    for options in ([], ["--model.lr=1e-3"]):
        ran = subprocess.run([sys.executable, "-c", code, "fit", *options], capture_output=True, text=True, check=True)
        assert all(f"\n  {name} " in ran.stderr for name in recipes.RECIPES)


@pytest.mark.parametrize("option", [["--data.train", "my pictures"], ["--data.init_args.train=my pictures"]])
def test_command_of_a_pretrained_start_has_the_given_folder(
    option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIGS.parent)
    with pytest.raises(ValueError) as error:
        recipes.main(["--trainer.max_epochs=1", *option])
    command = f"--config configs/finetune_folder.yaml --pretrained {recipes.PRETRAINED} --data.train 'my pictures'\n"
    assert f"vitkit fit {command}recipes in configs:\n" in str(error.value)
    monkeypatch.chdir(tmp_path)
    assert f"--config {shlex.quote(str(CONFIGS))}/finetune_folder.yaml " in recipes.format_recipes("my pictures")
    monkeypatch.setattr(recipes, "__file__", str(tmp_path / "site-packages" / "vitkit" / "fit" / "recipes.py"))
    assert "configs/ of vitkit's repository, which an installed package lacks" in recipes.format_recipes("x")


@pytest.mark.parametrize("option", ["-cx", "--config=x", "--pretrained", "--model=x", "--help", "--data.help", "-h"])
def test_config_model_or_help_needs_no_recipe(option: str) -> None:
    assert recipes.SUFFICIENT.fullmatch(option)
    assert not recipes.SUFFICIENT.fullmatch("--model.lr=1") and not recipes.SUFFICIENT.fullmatch("--compile")
