"""The options of a training run, without the classes that they are for: help and errors need no torch and Lightning."""

import ast
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser

from vitkit.support.errors import escape_controls, suggest

# Parts of a model that may start from a folder, by the inputs of a model that is such a part as a whole.
TOWERS: Mapping[str, tuple[str, ...]] = {"image": ("images",), "text": ("texts",), "decoder": ("texts",)}
# Measured on one thread of a CPU in bf16-mixed; in float32 it is half of the memory.
CHECKPOINT_BLOCKS = (
    "recompute each block in the backward pass: a step of ViT-S/16 takes two thirds of the memory, 1.25 times as long"
)
KEEP = (
    "the weights that the run reports and keeps in model/: of its last epoch, or of the best validation, which makes "
    "the figures too good, as they selected it (default: last; best with --patience)"
)
CHANGES = (
    "resume between two epochs with another data.batch, trainer.accumulate_grad_batches, trainer.devices, num_nodes or "
    "strategy: the schedule goes on at the same epoch, with the learning rate of the new batch"
)
DEBUG = (
    "check a config in seconds: 3 batches of at most 8 samples, and a model of one block unless it is pretrained; "
    "each run starts anew in a folder of its own, whose name ends in -debug"
)
TRAINER_HELP = "--trainer.help"
# Options whose names begin so are read from the signatures of classes.
CLASSES = {
    "model": "the model and its training: --model.help CLASS lists the options of a class",
    "data": "the data: --data.help CLASS lists the options of a class",
    "trainer": f"Lightning's Trainer, such as --trainer.max_epochs: {TRAINER_HELP} describes its options",
    "ema": "the average of the weights: --ema.decay",
    "checkpoint": "last.ckpt: --checkpoint.every, in steps",
    "report": "report.json: --report.baselines",
}
SYNONYMS = {"learning_rate": "lr", "epochs": "max_epochs", "batch_size": "batch", "num_workers": "workers"}


def suggest_option(name: str, options: Sequence[str]) -> str:
    """Return the suggestion of the option with the same meaning in other libraries, or of a similar name."""
    synonym = SYNONYMS.get(name.rpartition(".")[2])
    same = [option for option in options if option.rpartition(".")[2] == synonym]
    return f"; did you mean {same[0]}?" if same else suggest(name, options)


def add_run_options(parser: ArgumentParser, options: Mapping[str, int]) -> None:
    """Add the options of a run itself. Args: options: further ones with their defaults."""
    parser.add_argument(
        "--run", type=Path | None, help="the folder of the run (default: runs/ and the names of the configs)"
    )
    parser.add_argument("--fresh", action="store_true", help="start anew, in an empty folder")
    parser.add_argument("--resume_with_changes", action="store_true", help=CHANGES)
    parser.add_argument("--threads", type=int | None, help="CPU threads for each operation")
    add_pretrained_options(parser)
    parser.add_argument("--patience", type=int | None, help="stop after so many validations without a better score")
    parser.add_argument("--keep", type=Literal["last", "best"] | None, help=KEEP)
    parser.add_argument("--compile", action="store_true", help="compile the model by torch.compile")
    parser.add_argument("--checkpoint_blocks", action="store_true", help=CHECKPOINT_BLOCKS)
    parser.add_argument("--debug", action="store_true", help=DEBUG)
    parser.add_argument("--print_groups", action="store_true", help="list the parameter groups, and exit")
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=int, default=default)


def add_pretrained_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Start from the weights of a model: a folder, timm:, openclip: or hf:NAME")
    text = "a model folder, timm:NAME, openclip:NAME@PRETRAINED or hf:NAME: its model, weights and preprocessing"
    group.add_argument("--pretrained", type=str | None, help=text)
    for tower in TOWERS:
        text = f"likewise, of which the {tower} tower and its weights are used"
        group.add_argument(f"--pretrained_{tower}", type=str | None, help=text)


def check_options(arguments: Sequence[str], command: str, description: str) -> None:
    """Print the help if it is asked for, or exit with an error if the command line names an option that no run has."""
    parser = ArgumentParser(prog=f"vitkit {command}", description=description, allow_abbrev=False)
    parser.add_argument("-c", "--config", help="a config, in YAML; several are read in order")
    parser.add_argument("--print_config", help="print the config with all arguments, and exit")
    parser.add_argument("--seed_everything", type=int, default=0, help="seed of random numbers")
    add_run_options(parser, {})
    group = parser.add_argument_group("Options of classes")
    for name, text in CLASSES.items():
        group.add_argument(f"--{name}", metavar="...", help=text)
    if {"-h", "--help"} & {*arguments}:
        parser.print_help()
        sys.exit(0)
    known = [action.dest for action in parser._actions]
    names = [argument[2:].partition("=")[0] for argument in arguments if argument.startswith("--")]
    if unknown := [name for name in names if name.partition(".")[0].rstrip("+") not in known]:
        known += [f"trainer.{name}" for name in read_trainer_options()]
        message = f"error: there is no option {unknown[0]}{suggest_option(unknown[0], known)}"
        print(escape_controls(message), file=sys.stderr)
        sys.exit(2)


def read_trainer_options() -> list[str]:
    """Return the names of the Trainer's arguments from Lightning's code, whose import takes seconds."""
    spec = find_spec("lightning")
    assert spec is not None and spec.origin is not None
    code = (Path(spec.origin).parent / "pytorch/trainer/trainer.py").read_text("utf-8")
    trainer = next(node for node in ast.parse(code).body if isinstance(node, ast.ClassDef) and node.name == "Trainer")
    init = next(node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return [argument.arg for argument in init.args.kwonlyargs]
