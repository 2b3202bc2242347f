"""Old class paths and arguments of configs, and functions that replace them by the present ones.

They apply to the config of a model folder, to the configs and options of `vitkit fit`, and to the saved config that a
resumed run is compared with. No class is imported, so configs from unknown sources are safe to update.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CLASS_PATHS: Mapping[str, str] = {
    "vitkit.tasks.reconstruct.Reconstruct": "vitkit.tasks.reconstruction.Reconstruct",
    "vitkit.losses.labels.binary_cross_entropy": "vitkit.losses.per_sample.binary_cross_entropy",
    "vitkit.losses.labels.cross_entropy": "vitkit.losses.per_sample.cross_entropy",
    "vitkit.losses.labels.squared_error": "vitkit.losses.per_sample.squared_error",
    "vitkit.nn.attention.ExplicitCore": "vitkit.nn.cores.ExplicitCore",
    "vitkit.nn.attention.FusedCore": "vitkit.nn.cores.FusedCore",
    "vitkit.nn.attention.MeasuredCore": "vitkit.nn.cores.MeasuredCore",
    # in trainer.callbacks
    "vitkit.tasks.averaging.EMA": "vitkit.fit.ema.EMA",
    "vitkit.tasks.checkpoint.Checkpoint": "vitkit.fit.checkpoint.Checkpoint",
    "vitkit.tasks.patience.Patience": "vitkit.fit.early_stopping.Patience",
    "vitkit.tasks.recomputation.BlockCheckpointing": "vitkit.fit.recomputation.BlockCheckpointing",
    "vitkit.tasks.report.Report": "vitkit.fit.run_report.Report",
}
PREPROCESSING = {name: f"preprocess.{name}" for name in ("size", "mean", "std", "interpolation", "crop")}
READING = {name: f"reading.{name}" for name in ("columns", "reduce", "on_error")}
IMAGES = {**PREPROCESSING, **READING, "augment": "augment.images", "augment_tensors": "augment.tensors"}
PAIRS = {
    **IMAGES,
    **{name: f"tokenizer.{name}" for name in ("context", "whole", "vocabulary", "overflow")},
    "distinct": "draw",
}
# {present class path: {old argument: new argument, or "group.argument"}}.
ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "vitkit.data.images.Images": IMAGES,
    "vitkit.data.pairs.Pairs": PAIRS,
    "vitkit.data.views.Views": READING,
}
# The same for a section of a config without a class path, which another config gives.
SECTIONS: Mapping[str, Mapping[str, str]] = {"data": PAIRS}
# Defaults that earlier versions saved in the config of a run; the present default is None.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "vitkit.data.images.Images": {"columns": ["file_name", "label"]},
    "vitkit.data.pairs.Pairs": {"columns": ["file_name", "text"]},
    "vitkit.data.views.Views": {"columns": ["file_name", "label"]},
}
# New values in place of old ones.
VALUES: Mapping[str, Mapping[bool, Any]] = {
    "distinct": {True: {"class_path": "vitkit.data.order.Distinct"}, False: None},
}

OPTION = re.compile(
    rf"(?P<head>--(?P<section>{'|'.join(SECTIONS)})\.(?:init_args\.)?(?P<name>\w+))(?P<plus>\+?)(?:=(?P<value>.*))?",
    re.DOTALL,
)
PATH = re.compile(r"(?<![\w./-])vitkit(?:\.\w+)+(?![\w./-])")


def update_names(config: Any, note: Callable[[str, str], object] = lambda old, new: None) -> Any:
    """Return a config (plain data) with old class paths and arguments replaced by the present ones.

    Args: note: called with the old and the new name of each argument that is replaced.
    """
    match config:
        case str():
            return CLASS_PATHS.get(config, config)
        case list() | tuple():
            return [update_names(item, note) for item in config]
        case Mapping():
            updated = {key: update_names(item, note) for key, item in config.items()}
            match updated:
                case {"class_path": str(path), "init_args": dict(arguments)} if (path := find_path(path)) in ARGUMENTS:
                    defaults = DEFAULTS.get(path, {})
                    arguments = {name: value for name, value in arguments.items() if value != defaults.get(name, ...)}
                    updated["init_args"] = move_arguments(arguments, ARGUMENTS[path], note)
            for section, names in SECTIONS.items():
                match updated.get(section):
                    case {"class_path": _}:
                        pass
                    case {"init_args": dict(arguments), **others}:
                        updated[section] = {**others, "init_args": move_arguments(arguments, names, note)}
                    case dict(arguments):
                        updated[section] = move_arguments(arguments, names, note)
            return updated
    return config


def find_path(name: str) -> str:
    """Return the path of a class in ARGUMENTS that is given by its path or by its name alone."""
    return next((path for path in ARGUMENTS if path.rpartition(".")[2] == name), name)


def move_arguments(
    arguments: Mapping[str, Any], names: Mapping[str, str], note: Callable[[str, str], object]
) -> dict[str, Any]:
    """Return the arguments of a class under their present names.

    An old name stays, and the parser refuses it, where the present argument is given too or the value is no old one.
    """
    present = {name: value for name, value in arguments.items() if not is_old_argument(name, value, names)}
    updated = dict(present)
    for name in [name for name in arguments if name not in present]:
        value, (group, _, argument) = arguments[name], names[name].partition(".")
        if name in VALUES:
            known = isinstance(value, bool) and (group not in present or VALUES[name][value] is None)
            update = {group: present.get(group, VALUES[name][value])} if known else {name: value}
        else:
            others = updated.get(group, {})
            known = isinstance(others, Mapping) and argument not in others
            update = {group: {**others, argument: value} if argument else value} if known else {name: value}
        updated |= update
        if known:
            note(name, names[name])
    return updated


def is_old_argument(name: str, value: object, names: Mapping[str, str]) -> bool:
    """Return whether an argument has a new name. The name of a group may be that of an old argument, too."""
    return name in names and not (names[name].startswith(f"{name}.") and isinstance(value, Mapping))


def update_options(options: Sequence[str]) -> list[str]:
    """Return a command line with old class paths replaced by the present ones, also within JSON."""
    return [PATH.sub(lambda match: CLASS_PATHS.get(match[0], match[0]), option) for option in options]


def move_options(options: Sequence[str], note: Callable[[str, str], object] = lambda old, new: None) -> list[str]:
    """Return a command line with old arguments of SECTIONS, such as `--data.size`, replaced by the present ones."""
    updated: list[str] = []
    rest = [*options]
    while rest:
        option = rest.pop(0)
        match = OPTION.fullmatch(option)
        if match is None or (new := SECTIONS[match["section"]].get(match["name"])) is None:
            updated.append(option)
            continue
        value = match["value"]
        if value is None:
            if not rest:
                return [*options]  # the parser reports the missing value
            value = rest.pop(0)
        if new.partition(".")[0] == match["name"] and value.lstrip().startswith("{"):  # the value is the whole group
            updated.append(f"{match['head']}{match['plus']}={value}")
            continue
        if match["name"] in VALUES:
            choices = {str(old).lower(): choice for old, choice in VALUES[match["name"]].items()}
            given = any(other.startswith(f"--{match['section']}.{new}") for other in options)
            if value.lower() not in choices or (given and choices[value.lower()] is not None):
                updated.append(f"{match['head']}={value}")  # the parser refuses it
                continue
            if given:
                continue
            value = json.dumps(choices[value.lower()])
        note(match["head"].removeprefix("--"), f"{match['section']}.{new}")
        updated.append(f"--{match['section']}.{new}{match['plus']}={value}")
    return updated
