"""A run's folder is its identity: what is in it decides whether a command starts, goes on, or is refused."""

import inspect
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from pydoc import locate
from types import NoneType
from typing import Any, NamedTuple, cast, get_args

import torch
import yaml
from jsonargparse import Namespace
from lightning.fabric.utilities.rank_zero import rank_zero_only

from vitkit.bundle.folder import save_config
from vitkit.bundle.old_names import update_names
from vitkit.data.data_module import Data
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.fit.data_links import find_links, remove_links
from vitkit.fit.run_config import CLI, leaves, plain
from vitkit.models.parts import get_inputs
from vitkit.support.errors import format_few
from vitkit.support.files import replace_file
from vitkit.tasks.task import Task

# What there can be before last.ckpt.
STARTED = {"config.yaml", "model", "metrics.csv", "events", "best.ckpt", "reconstructions"}
# And behind it.
FINISHED = {"last.ckpt", "report.json", "unreadable.txt", "curve.png", "confusion.png", "retrievals.png"}
# What may change when a run goes on: how long it is, how it is watched, how fast it is read and computed.
FREE = (
    *("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "trainer.log_every_n_steps"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.profiler"),
    *("data.workers", "checkpoint.every", "report.baselines", "threads", "patience", "compile"),
    *("checkpoint_blocks", "model.probe_every", "model.pictures_every"),
)
TRANSIENT = ("config", "run", "fresh", "print_groups")


class Progress(NamedTuple):
    """Optimiser steps, whole epochs, and the validations since the best when the run stopped for want of a better."""

    steps: int = 0
    epochs: int = 0
    waited: int = 0

    def end(self, length: Namespace, patience: int | None) -> str | None:
        """Why there is nothing left to train, if so. Args: length: max_steps and max_epochs."""
        if self.waited and patience is not None and patience <= self.waited:
            return f"stopped after {self.waited} validations without a better score; a larger patience goes on"
        epochs = -1 if length.max_epochs is None else length.max_epochs
        if 0 <= length.max_steps <= self.steps or 0 <= epochs <= self.epochs:
            done = f"{self.epochs} epochs and {self.steps} steps"
            return f"is finished, after {done}; a larger trainer.max_epochs goes on"
        return None


def read_progress(checkpoint: Path) -> Progress:
    if not checkpoint.exists():
        return Progress()
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, UnpicklingError) as error:
        raise ValueError(
            f"{checkpoint} must be a whole checkpoint, got {str(error):.80}; remove it to start again"
        ) from error
    patience = [held for name, held in state["callbacks"].items() if name.startswith("Patience")]
    waited = max((held["wait_count"] for held in patience if held["wait_count"] >= held["patience"]), default=0)
    epochs = state["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    return Progress(state["global_step"], epochs, waited)


@rank_zero_only
def claim(cli: CLI) -> None:
    """Make the run folder this run's; a debug run empties that of the one before.

    Raises: ValueError if it is another's, or holds the same run under another config.
    """
    data, task = cast(Data, cli.datamodule), cast(Task, cli.model)
    config = {key: value for key, value in plain(cli.config).items() if key not in TRANSIENT}
    if cli.config.debug:
        empty_debug_folder(cli.run)
    else:
        del config["debug"]  # a debug run alone has it
    config["model"]["init_args"]["model"] = remove_links(config["model"]["init_args"]["model"], find_links(data))
    preprocess, tokenizer = select_inputs(task, data)
    path = cli.run / "config.yaml"
    if cli.config.fresh and cli.run.exists() and any(cli.run.iterdir()):
        raise ValueError(f"run must be an empty folder to start fresh, got run={cli.run}")
    begun = (cli.run / "last.ckpt").exists()
    if begun and path.exists():
        refuse_changes(update_names(yaml.safe_load(path.read_text("utf-8"))), config)
    elif cli.run.exists():
        held = {file.name for file in cli.run.iterdir() if file.suffix != ".partial"}
        if held - STARTED or held and not {"config.yaml", "model"} <= held:
            raise ValueError(f"run must be a folder that is new, empty or of a run, got run={cli.run}")
        shutil.rmtree(cli.run / "model", ignore_errors=True)  # of a run that failed before it saved anything
    cli.run.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as beside:
        beside.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    multilabel = bool(task.names) and data.multilabel
    save_config(cli.run / "model", cli.portable, preprocess, task.names, multilabel, tokenizer)


def empty_debug_folder(folder: Path) -> None:
    """Remove what an earlier debug run wrote. Raises: ValueError, before it removes any, where there is more."""
    entries = {entry.name: entry for entry in folder.iterdir()} if folder.exists() else {}
    others = [name for name, entry in entries.items() if entry.suffix != ".partial" and name not in STARTED | FINISHED]
    config = yaml.safe_load(entries["config.yaml"].read_text("utf-8")) if "config.yaml" in entries else None
    debug = isinstance(config, dict) and config.get("debug") is True
    if entries and (others or not debug):
        reason = f"which holds {format_few(sorted(others))}" if others else "which no debug run wrote"
        raise ValueError(
            f"run must be a folder that is new, empty or of a debug run, got run={folder}, {reason}; "
            "choose another --run"
        )
    for entry in sorted(entries.values(), key=lambda entry: entry.name == "config.yaml"):  # that says whose it is: last
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def select_inputs(task: Task, data: Data) -> tuple[Preprocess | None, Tokenizer | None]:
    """Return the preprocessing of images and the tokenizer of texts, None for what the model does not read.

    Raises: ValueError where the data lacks what the model reads.
    """
    inputs = get_inputs(task.model)
    parts = {"images": data.preprocess, "texts": data.tokenizer}
    if missing := [name for name in parts if name in inputs and parts[name] is None]:
        raise ValueError(
            f"data must hold {' and '.join(missing)} for {type(task.model).__name__}, got {type(data).__name__}"
        )
    return data.preprocess if "images" in inputs else None, data.tokenizer if "texts" in inputs else None


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises: ValueError where a run would go on under another config, but for FREE and arguments gained since."""
    before, now = number_items(before), number_items(now)
    old, new = dict(leaves(before)), dict(leaves(now))
    later = set(list_defaults(now)) - old.keys()  # arguments that a class did not have when the run began
    changed = [key for key in sorted({*old, *new} - later) if old.get(key) != new.get(key) and key not in FREE]
    if changed:
        texts = [f"{key} (was {old.get(key)}, now {new.get(key)})" for key in changed]
        raise ValueError(f"run must go on as it began, got {', '.join(texts)}; choose another --run")


def number_items(value: Any) -> Any:
    """Return a config whose lists of mappings are mappings by number, so that each of their values has a key."""
    match value:
        case Mapping():
            return {key: number_items(item) for key, item in value.items()}
        case [*items] if any(isinstance(item, Mapping) for item in items):
            return {str(number): number_items(item) for number, item in enumerate(items)}
    return value


def list_defaults(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys, as in `leaves`, of arguments that hold their defaults. None is left out of a config: where an
    argument may be None, its absence says that it was."""
    parameters = find_parameters(config)
    for key, value in config.items():
        name = prefix.removesuffix("init_args.") + key
        if key == "init_args" and isinstance(value, Mapping):
            yield from list_default_arguments(value, parameters, f"{name}.")
        if isinstance(value, Mapping):
            yield from list_defaults(value, f"{name}.")


def list_default_arguments(
    arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], prefix: str
) -> Iterator[str]:
    """Yield the keys of arguments that hold their defaults, and those of groups: classes that no class path names."""
    group = prefix.removesuffix("init_args.")
    for argument, value in arguments.items():
        parameter = parameters.get(argument)
        if parameter and not admits_none(parameter) and is_default(value, parameter.default):
            yield from (leaf for leaf, _ in leaves({argument: value}, prefix))
        elif parameter and isinstance(parameter.annotation, type) and isinstance(value, Mapping):
            yield from list_default_arguments(value, read_parameters(parameter.annotation), f"{group}{argument}.")


def find_parameters(config: Mapping[str, Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the class that a config names; none where it names none."""
    return read_parameters(locate(str(config.get("class_path"))))


def read_parameters(kind: object) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind).parameters if callable(kind) else {}


def admits_none(parameter: inspect.Parameter) -> bool:
    return NoneType in get_args(parameter.annotation)


def is_default(value: object, default: object) -> bool:
    """Return whether a value of a config spells a default: a plain value, a function, or a class with its defaults."""
    match value:
        case {"class_path": str(path), **rest}:
            parameters, arguments = find_parameters({"class_path": path}), rest.get("init_args", {})
            return locate(path) is default and all(
                name in parameters and is_default(item, parameters[name].default) for name, item in arguments.items()
            )
        case str() if callable(default):
            return locate(value) is default
    return value == plain(default)
