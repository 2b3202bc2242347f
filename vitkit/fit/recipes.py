"""`vitkit fit`: without a config or a model, name the recipes in configs/, before torch is imported."""

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from vitkit.fit.run_options import check_options

PRETRAINED = "timm:vit_small_patch16_224.augreg_in21k"
RECIPES = {
    "finetune_folder": "images with classes, from trained weights, with --pretrained",
    "classify_folder": "images with classes, from scratch",
    "finetune_pairs": "images with captions, from trained weights, with --pretrained",
    "contrast_folder": "images with captions, from scratch",
    "pretrain_mae_folder": "images without labels",
    "language_text": "texts, for a language model",
    "classify_digits": "digits of scikit-learn; *_mnist5k, *_openmoji and others are of built-in data too",
}
# Options that give a config or a model, or only show something.
SUFFICIENT = re.compile(
    r"-c.*|(--config|--pretrained\w*|--model(\.class_path)?|-h|--help|--[\w.]+\.help|--print_config)(=.*)?", re.DOTALL
)
PURPOSE = "Train a model from a config into a run folder. After a kill, the same command resumes the run."


def main(arguments: Sequence[str]) -> int:
    check_options(arguments, "fit", PURPOSE)
    if not any(SUFFICIENT.fullmatch(argument) for argument in arguments):
        raise ValueError(format_recipes(find_training_source(arguments)))
    from vitkit.fit import command

    return command.main(arguments)


def find_training_source(arguments: Sequence[str]) -> str:
    """Return the last value of --data.train, or PICTURES."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data.train", "--data.init_args.train", nargs="?", dest="source")
    return parser.parse_known_args(arguments)[0].source or "PICTURES"


def format_recipes(source: str) -> str:
    """Return an error that lists the recipes, and the command of a pretrained start with a source of images."""
    folder, place = find_configs()
    start = f"--config {shlex.quote(f'{folder}/finetune_folder.yaml')} --pretrained {PRETRAINED}"
    return "\n".join(
        [
            "config must be given, got none; for images with classes, from trained weights:",
            f"  vitkit fit {start} --data.train {shlex.quote(source)}",
            f"recipes in {place}:",
            *(f"  {name:<21}{purpose}" for name, purpose in RECIPES.items()),
        ]
    )


def find_configs() -> tuple[str, str]:
    """Return the folder of the recipes, from the working directory if they are below it, and a text that says where."""
    folder = Path(__file__).resolve().parents[2] / "configs"
    if not (folder / "finetune_folder.yaml").is_file():
        return "configs", "configs/ of vitkit's repository, which an installed package lacks: copy them from there"
    near = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    return str(near), str(near)
