"""Build models from configs: class paths and numbers.

A config may come from a stranger, and jsonargparse imports any path in it. So every string must be in an explicit list
of names; a check of prefixes would allow `torch.nn.parallel.distributed.os.system`.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from torch import nn

import vitkit
from vitkit import models
from vitkit import nn as trunk
from vitkit.bundle.nested_parser import NestedParser
from vitkit.bundle.old_names import update_names
from vitkit.support.errors import suggest

TORCH = (
    *("LayerNorm", "RMSNorm", "Linear", "Identity", "Dropout"),
    *("GELU", "ReLU", "SiLU", "Mish", "Tanh", "Sigmoid", "Hardswish", "LeakyReLU"),
)


WORDS = ("none", "tanh")  # values of GELU's `approximate`, the only argument here that is a string


# The headings of nested errors of jsonargparse, and its lines besides the cause.
HEADER = r"""Parser key "[^"]+":|Problem with given class_path '[^']+':|callable class:"""


FRAME = r"Does not validate|Subtypes:|Errors:|Expected a <class|Given value"


def build_model(config: Mapping[str, object]) -> nn.Module:
    """Build the model that {"class_path": ..., "init_args": {...}} describes.

    Raises: ValueError, one line, for any fault in the config.
    """
    return _parse(config, lambda parser, namespace: parser.instantiate(namespace).config)


def fill_defaults(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the config with every argument that `build_model` fills in.

    These are not always the defaults of a class: a class in place of a slot's default also takes over its arguments of
    the same name.

    Raises: ValueError, one line, for any fault in the config.
    """
    return _parse(config, lambda parser, namespace: namespace.config.as_dict())


def _parse(config: Mapping[str, object], convert: Callable[[ArgumentParser, Any], Any]) -> Any:
    if "class_path" not in config:
        raise ValueError(f"config must hold a class_path, got {config!r:.80}")
    check_config(config, "config")
    try:
        return convert(*_parse_text(json.dumps(config)))
    except Exception as error:  # constructors may raise anything
        raise ValueError(explain_error(str(error) or repr(error))) from None


@lru_cache(maxsize=8)
def _parse_text(config: str) -> tuple[ArgumentParser, Any]:
    """Parse a config. It takes most of a second, and a model is built several times: the result is cached."""
    parser = NestedParser(exit_on_error=False)
    parser.add_argument("--config", type=nn.Module, required=True)
    return parser, parser.parse_object({"config": json.loads(config)})


def check_config(value: object, key: str) -> None:
    """Refuse anything but plain data whose strings are all in the list of names. Imports and runs nothing."""
    match value:
        case None | bool() | int() | float():
            pass
        case str():
            if value not in WORDS:
                look_up_name(value, key)
        case list() | tuple():
            for index, item in enumerate(value):
                check_config(item, f"{key}[{index}]")
        case {"class_path": str(path), **rest} if not rest.keys() - {"init_args"}:
            parameters = inspect.signature(look_up_name(path, f"{key}.class_path")).parameters
            arguments = rest.get("init_args", {})
            check_config(arguments, key)
            for name in arguments if isinstance(arguments, Mapping) else ["init_args"]:
                if name not in parameters:
                    raise ValueError(f"{key}.{name} is not an argument of {path}{suggest(name, parameters)}")
        case {"class_path": _}:
            raise ValueError(f"{key} must hold one class_path and init_args, got {value!r:.80}")
        case Mapping():
            for name, item in value.items():
                if not (isinstance(name, str) and name.isidentifier()):
                    raise ValueError(f"{key} must have plain names as keys, got {name!r:.80}")
                check_config(item, f"{key}.{name}")
        case _:
            raise ValueError(f"{key} must be a name, a number, a list or a mapping, got {value!r:.80}")


def find_class(path: object) -> Callable[..., object] | None:
    """Return the class or function of a path that a config may name; None for any other path."""
    return get_config_names().get(path) if isinstance(path, str) else None


def look_up_name(path: str, key: str) -> Callable[..., object]:
    """Return the class or function of a path. Raises: ValueError for a path that no config may name."""
    if path not in get_config_names():
        hint = suggest(path, get_config_names())
        raise ValueError(f"{key} must be one of the names that a config may use, got {path!r:.80}{hint}")
    return get_config_names()[path]


def explain_error(message: str, more: Iterable[str] = ()) -> str:
    """Shorten an error of jsonargparse to one line: the key, as on the command line, and the innermost cause.

    `more` are names to suggest besides `get_config_names()`.
    """
    key = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    inner = re.split(HEADER, message)[-1]
    lines = [line.strip(" -") for line in inner.splitlines()]
    cause = " ".join(line for line in lines if line and not re.match(FRAME, line))
    if not cause:  # the message only lists types
        kinds = dict.fromkeys(re.findall(r"Expected a <class '([\w.]+)'>", inner)[: None if "Errors:" in inner else 1])
        value = re.findall(r"(?:Got|Given) value: (.*)", inner)
        cause = f"must be {' or '.join(kinds)}, got {', '.join(value[:1])}"
    if (path := re.findall(r"class_path '([^']+)'", message)) and re.search("No module|no attribute", cause):
        cause += suggest(path[-1], [*more, *get_config_names()])
    return ": ".join(part for part in (key, re.sub(r"\. Got value: .*", "", cause)) if part)


@cache
def get_config_names() -> Mapping[str, Callable[..., object]]:
    """Return the classes and functions that a config may name: of nn, models and torch.nn, under all their paths."""
    modules = {trunk: trunk.__all__, trunk.init: ("vit", "mae", "clip"), models: models.__all__, nn: TORCH}
    exports = {(module.__name__, name): vars(module)[name] for module in modules for name in modules[module]}
    paths: dict[str, Callable[..., object]] = {}
    for (module, name), value in exports.items():
        if callable(value):
            paths |= {f"{module}.{name}": value, f"{value.__module__}.{value.__qualname__}": value}
            if module.startswith("vitkit") and name in vitkit.__all__:
                paths[f"vitkit.{name}"] = value  # the shortest path, which jsonargparse writes
    return paths


class PlainLoader(yaml.SafeLoader):
    """A loader of plain data that refuses aliases, which may expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("config must spell everything out, got an alias (*)")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Mapping[str, object]:
    """Return the config in a YAML file, plain data with present names. Raises: RecursionError for deep brackets."""
    config = PlainLoader(path.read_text("utf-8")).get_single_data()
    if not isinstance(config, Mapping):
        raise ValueError(f"config must be a mapping, got {config!r:.80}")
    return update_names(config)
