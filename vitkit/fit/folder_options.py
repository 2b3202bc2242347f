"""The options --pretrained SOURCE and --pretrained_TOWER SOURCE, read from configs and the command line.

They are read before the whole parser runs, as the folders decide what it parses.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from jsonargparse import Namespace

from vitkit.fit.parser import PREVIEW_MODE, SUBCLASSES, PreviewParser, load_yaml
from vitkit.fit.run_options import TOWERS, add_pretrained_options

PARTS = "model.init_args.model.init_args"


class Folders(NamedTuple):
    """The folders given by configs and options, and the arguments that decide how they are read.

    Args:
        whole: the folder of a model. towers: the folder of each tower, by name.
        task, data: the class paths of the task and of its data, as written.
        outputs: of each tower, by name.
        configs: the number of configs.
    """

    whole: str | None
    towers: Mapping[str, str]
    task: str | None
    data: str | None
    outputs: Mapping[str, int]
    configs: int


def read_folders(arguments: Sequence[str]) -> Folders:
    """Return the last values that configs and options give, as the whole parser would read them."""
    parser = PreviewParser(parser_mode=PREVIEW_MODE, add_help=False)
    parser.add_argument("-c", "--config", action="config")
    add_pretrained_options(parser)
    names = [
        *(f"{name}.class_path" for name in SUBCLASSES),
        *(f"{PARTS}.{tower}.init_args.outputs" for tower in TOWERS),
    ]
    for name in names:
        parser.add_argument(f"--{name}", type=Any)
    config = parser.parse_args(select_options(arguments, names))
    outputs = {tower: config.get(f"{PARTS}.{tower}.init_args.outputs") for tower in TOWERS}
    return Folders(
        config.pretrained,
        {tower: folder for tower in TOWERS if (folder := config[f"pretrained_{tower}"]) is not None},
        read_class_path(config, "model"),
        read_class_path(config, "data"),
        {tower: value for tower, value in outputs.items() if isinstance(value, int)},
        len(config.config or []),
    )


def read_class_path(config: Namespace, name: str) -> str | None:
    path = config.get(f"{name}.class_path")
    return path if isinstance(path, str) else None


class OptionCollector(argparse.Action):
    """Adds an option to a list, under its full name."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.options.append(f"--{self.dest}={values}")


class ValueCollector(OptionCollector):
    """Adds the values of an option under given names to a list. The option holds a value or a mapping."""

    def __init__(self, *args: Any, const: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.names = const

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        try:
            content = load_yaml(values)
        except yaml.YAMLError:
            return
        for name, value in iterate_values(self.dest, content):
            if name in self.names:
                namespace.options.append(
                    f"--{self.names[name]}={value if isinstance(value, str) else json.dumps(value)}"
                )


def iterate_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of an option under names without init_args. A class may be given by its path alone."""
    match value:
        case Mapping():
            for key, item in value.items():
                yield from iterate_values(strip_init_args(f"{name}.{key}"), item)
        case str() if name in SUBCLASSES:
            yield f"{name}.class_path", value
        case _:
            yield name, value


def strip_init_args(name: str) -> str:
    """Return the name of an argument as the command line may shorten it."""
    return re.sub(r"\.init_args(?=\.|$)", "", name)


def select_options(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the options that name folders or hold these names, in full and in order.

    Invalid options are left to the whole parser.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-c", "--config", action=OptionCollector)
    for name in ("pretrained", *(f"pretrained_{tower}" for tower in TOWERS)):
        parser.add_argument(f"--{name}", action=OptionCollector)
    short = {strip_init_args(name): name for name in names}
    parts = [name.split(".") for name in short]
    for name in {".".join(part[:depth]): None for part in parts for depth in range(1, len(part) + 1)}:
        parser.add_argument(f"--{name}", dest=name, action=ValueCollector, const=short)
    selection: list[str] = []
    options = [strip_option(argument) for argument in arguments]
    try:
        parser.parse_known_args(options, argparse.Namespace(options=selection))
    except argparse.ArgumentError:  # an option without a value
        return []
    return selection


def strip_option(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"{strip_init_args(name)}{equals}{value}" if name.startswith("--") else argument


def is_pretrained(config: Namespace) -> bool:
    """Return whether any part of the model starts from a folder."""
    return any(config[name] is not None for name in ("pretrained", *(f"pretrained_{tower}" for tower in TOWERS)))
