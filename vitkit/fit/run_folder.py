"""The folder of a run, whose files decide whether a command starts, resumes, or is refused."""

import inspect
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pydoc import locate
from types import NoneType
from typing import Any, cast, get_args

import yaml
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only

from vitkit.bundle.folder import save_config
from vitkit.bundle.old_names import update_names
from vitkit.data.data_module import Data
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.fit.checkpoint import read_progress
from vitkit.fit.data_links import find_links, remove_links
from vitkit.fit.run_config import CLI, iterate_leaves, to_yaml_types
from vitkit.models.parts import get_inputs
from vitkit.support.errors import format_few
from vitkit.support.files import replace_file
from vitkit.support.folder_lock import LOCK, lock_folder
from vitkit.tasks.task import Task, say

# Files that may exist before last.ckpt, and after it.
EARLY_FILES = {"config.yaml", "model", "metrics.csv", "events", "best.ckpt", "reconstructions", "samples.txt"}
LATE_FILES = {"last.ckpt", "report.json", "unreadable.txt", "curve.png", "confusion.png", "retrievals.png"}
# Options that may change when a run resumes: its length, logs, speed and kept weights.
RESUMABLE = (
    *("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "trainer.log_every_n_steps"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.profiler", "trainer.logger"),
    *("data.workers", "checkpoint.every", "report.baselines", "threads", "patience", "keep", "compile"),
    *("checkpoint_blocks", "model.probe_every", "model.pictures_every", "model.sample_length"),
)
# Options that divide an epoch into optimiser steps, and may change between two epochs by --resume_with_changes.
DIVIDING = "data.batch", "trainer.accumulate_grad_batches", "trainer.devices", "trainer.num_nodes", "trainer.strategy"
TRANSIENT = ("config", "run", "fresh", "print_groups", "resume_with_changes")


@contextmanager
def lock_run(cli: CLI) -> Iterator[None]:
    """Keep other processes out of the run folder, but for the ranks of this run: the first has the lock for all.

    Raises: ValueError if another process has it, or the folder holds something else, which then stays as it is.
    """
    if cast(Any, rank_zero_only).rank or LightningEnvironment().node_rank():
        yield
        return
    check_run_folder(cli)
    cli.run.mkdir(parents=True, exist_ok=True)
    with lock_folder(cli.run, "run"):
        yield


def list_entries(run: Path) -> dict[str, Path]:
    """Return the files and folders in a run folder by name, without its lock."""
    return {entry.name: entry for entry in run.iterdir() if entry.name != LOCK} if run.exists() else {}


def check_run_folder(cli: CLI) -> None:
    """Raise a ValueError if the folder holds anything but a run, or must be empty."""
    entries = list_entries(cli.run)
    if cli.config.debug:
        check_debug_folder(cli.run, entries)
        return
    if cli.config.fresh and entries:
        raise ValueError(f"run must be an empty folder to start fresh, got run={cli.run}")
    names = {name for name in entries if not name.endswith(".partial")}
    if {"config.yaml", "last.ckpt"} <= names:
        return
    if (cli.run / "model" / "model.safetensors").exists():
        raise ValueError(
            f"run must have a last.ckpt to go on, got run={cli.run}, which holds trained weights alone; choose another "
            f"--run, which may start from them: --pretrained {cli.run / 'model'}"
        )
    if names - EARLY_FILES or names and not {"config.yaml", "model"} <= names:
        raise ValueError(
            f"run must be a folder that is new, empty or of a run, got run={cli.run}, which holds "
            f"{format_few(sorted(names))}; choose another --run"
        )


def make_config(cli: CLI) -> dict[str, Any]:
    """Return the content of config.yaml."""
    config = {key: value for key, value in to_yaml_types(cli.config).items() if key not in TRANSIENT}
    if not cli.config.debug:
        del config["debug"]  # only the config of a debug run has it
    links = find_links(cast(Data, cli.datamodule))
    config["model"]["init_args"]["model"] = remove_links(config["model"]["init_args"]["model"], links)
    return config


def refuse_other_config(cli: CLI) -> None:
    """Raise ValueError if the folder has a checkpoint of a run with another config, and print the allowed changes."""
    path, last = cli.run / "config.yaml", cli.run / "last.ckpt"
    if cli.config.debug or not (last.exists() and path.exists()):
        return
    allowed = DIVIDING if cli.config.resume_with_changes else ()
    changes = refuse_changes(update_names(yaml.safe_load(path.read_text("utf-8"))), make_config(cli), allowed)
    progress = read_progress(last)
    if changes and progress.within_epoch:
        raise ValueError(
            f"run must be between two epochs to resume with changes, got {', '.join(changes)} in epoch "
            f"{progress.epochs + 1}; resume it without changes until the epoch ends, or start another --run from "
            f"its weights: --pretrained {cli.run / 'model'}"
        )
    for change in changes:
        say(f"note: from epoch {progress.epochs + 1} on, {change}")


@rank_zero_only
def claim_folder(cli: CLI) -> None:
    """Write the config into the run folder. A debug run empties the folder of an earlier one.

    Raises: ValueError if the folder holds something else.
    """
    data, task = cast(Data, cli.datamodule), cast(Task, cli.model)
    check_run_folder(cli)
    if cli.config.debug:
        empty_debug_folder(cli.run)
    preprocess, tokenizer = select_inputs(task, data)
    path = cli.run / "config.yaml"
    if not ((cli.run / "last.ckpt").exists() and path.exists()):
        shutil.rmtree(cli.run / "model", ignore_errors=True)  # left by a run that failed before its first checkpoint
    cli.run.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_text(yaml.safe_dump(make_config(cli), sort_keys=False), "utf-8")
    multilabel = bool(task.names) and data.multilabel
    save_config(cli.run / "model", cli.portable, preprocess, task.names, multilabel, tokenizer)


def check_debug_folder(folder: Path, entries: Mapping[str, Path]) -> None:
    """Raise a ValueError if a folder holds anything but a debug run."""
    expected = EARLY_FILES | LATE_FILES
    others = [name for name in entries if not name.endswith(".partial") and name not in expected]
    config = yaml.safe_load(entries["config.yaml"].read_text("utf-8")) if "config.yaml" in entries else None
    debug = isinstance(config, dict) and config.get("debug") is True
    if entries and (others or not debug):
        reason = f"which holds {format_few(sorted(others))}" if others else "which no debug run wrote"
        raise ValueError(
            f"run must be a folder that is new, empty or of a debug run, got run={folder}, {reason}; "
            "choose another --run"
        )


def empty_debug_folder(folder: Path) -> None:
    """Empty the folder of an earlier debug run, config.yaml last, as it marks a debug run."""
    for entry in sorted(list_entries(folder).values(), key=lambda entry: entry.name == "config.yaml"):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def select_inputs(task: Task, data: Data) -> tuple[Preprocess | None, Tokenizer | None]:
    """Return the preprocessing of images and the tokenizer of texts, None for an input that the model does not have.

    Raises: ValueError if the data lack an input of the model.
    """
    inputs = get_inputs(task.model)
    parts = {"images": data.preprocess, "texts": data.tokenizer}
    if missing := [name for name in parts if name in inputs and parts[name] is None]:
        raise ValueError(
            f"data must hold {' and '.join(missing)} for {type(task.model).__name__}, got {type(data).__name__}"
        )
    return data.preprocess if "images" in inputs else None, data.tokenizer if "texts" in inputs else None


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], allowed: Sequence[str] = ()) -> list[str]:
    """Compare the config of a run with that of its resume, and return a text for each change of an allowed option.

    Raises: ValueError for others, except of RESUMABLE options and of arguments that classes have gained since.
    """
    before, now = number_items(before), number_items(now)
    old, new = dict(iterate_leaves(before)), dict(iterate_leaves(now))
    added = set(list_defaults(now)) - old.keys()  # arguments that a class did not have when the run began
    changes = [
        key for key in sorted({*old, *new} - added) if old.get(key) != new.get(key) and not is_part(key, RESUMABLE)
    ]
    texts = {key: f"{key} (was {old.get(key)}, now {new.get(key)})" for key in changes}
    if refused := [text for key, text in texts.items() if not is_part(key, allowed)]:
        remedy = "choose another --run, which --pretrained may start from the model/ of this one"
        if all(is_part(key, DIVIDING) for key in changes):
            remedy = f"add --resume_with_changes between two epochs, or {remedy}"
        raise ValueError(f"run must go on as it began, got {', '.join(refused)}; {remedy}")
    return [*texts.values()]


def is_part(key: str, names: Sequence[str]) -> bool:
    """Return whether a key, as in `iterate_leaves`, is one of the names or a part of one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def number_items(value: Any) -> Any:
    """Return a config with lists of mappings turned into mappings by number, so that every value has a key."""
    match value:
        case Mapping():
            return {key: number_items(item) for key, item in value.items()}
        case [*items] if any(isinstance(item, Mapping) for item in items):
            return {str(number): number_items(item) for number, item in enumerate(items)}
    return value


def list_defaults(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys, as in `iterate_leaves`, of arguments that hold their defaults.

    Arguments that may be None are skipped: a config leaves None out, so their absence has a meaning.
    """
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
    """Yield the keys of arguments that hold their defaults, also within groups: classes without a class path."""
    group = prefix.removesuffix("init_args.")
    for argument, value in arguments.items():
        parameter = parameters.get(argument)
        if parameter and not admits_none(parameter) and is_default(value, parameter.default):
            yield from (leaf for leaf, _ in iterate_leaves({argument: value}, prefix))
        elif parameter and isinstance(parameter.annotation, type) and isinstance(value, Mapping):
            yield from list_default_arguments(value, read_parameters(parameter.annotation), f"{group}{argument}.")


def find_parameters(config: Mapping[str, Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the class in a config, empty without one."""
    return read_parameters(locate(str(config.get("class_path"))))


def read_parameters(kind: object) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind).parameters if callable(kind) else {}


def admits_none(parameter: inspect.Parameter) -> bool:
    return NoneType in get_args(parameter.annotation)


def is_default(value: object, default: object) -> bool:
    """Return whether a value of a config equals a default: a value, a function, or a class with its defaults."""
    match value:
        case {"class_path": str(path), **rest}:
            parameters, arguments = find_parameters({"class_path": path}), rest.get("init_args", {})
            return locate(path) is default and all(
                name in parameters and is_default(item, parameters[name].default) for name, item in arguments.items()
            )
        case str() if callable(default):
            return locate(value) is default
    return value == to_yaml_types(default)
