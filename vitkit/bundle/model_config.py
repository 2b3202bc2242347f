"""From a config, plain class paths and numbers, to a model.

A config may come from a stranger. jsonargparse imports whatever a string in it spells, so every string is first looked
up in an explicit list of names; a test of prefixes would let `torch.nn.parallel.distributed.os.system` through.
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
from vitkit.bundle.old_names import update_names
from vitkit.support.errors import suggest

TORCH = (
    *("LayerNorm", "RMSNorm", "Linear", "Identity", "Dropout"),
    *("GELU", "ReLU", "SiLU", "Mish", "Tanh", "Sigmoid", "Hardswish", "LeakyReLU"),
)


WORDS = ("none", "tanh")  # values of GELU's `approximate`, the only argument here that is a string


# How jsonargparse nests one error in another, and what it says besides the cause.
HEADER = r"""Parser key "[^"]+":|Problem with given class_path '[^']+':|callable class:"""


FRAME = r"Does not validate|Subtypes:|Errors:|Expected a <class|Given value"


def build_model(config: Mapping[str, object]) -> nn.Module:
    """The model that {"class_path": ..., "init_args": {...}} describes.

    Raises: ValueError, one line, for whatever is wrong with it.
    """
    return _parsed(config, lambda parser, known: parser.instantiate(known).config)


def fill_defaults(config: Mapping[str, object]) -> dict[str, Any]:
    """The same config with every argument that `build_model` fills in.

    These are not always the defaults of a class: one that takes the place of a slot's default also takes over its
    arguments of the same name. Raises: ValueError, one line, for whatever is wrong with it.
    """
    return _parsed(config, lambda parser, known: known.config.as_dict())


def _parsed(config: Mapping[str, object], then: Callable[[ArgumentParser, Any], Any]) -> Any:
    if "class_path" not in config:
        raise ValueError(f"config must hold a class_path, got {config!r:.80}")
    check_config(config, "config")
    try:
        return then(*_understood(json.dumps(config)))
    except Exception as error:  # constructors raise what they like
        raise ValueError(explain_error(str(error) or repr(error))) from None


@lru_cache(maxsize=8)
def _understood(config: str) -> tuple[ArgumentParser, Any]:
    """What jsonargparse makes of it in most of a second: a model is asked for its parts, and built, several times."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", type=nn.Module, required=True)
    return parser, parser.parse_object({"config": json.loads(config)})


def check_config(value: object, key: str) -> None:
    """Refuse anything but plain data whose strings are all listed. Imports and runs nothing."""
    match value:
        case None | bool() | int() | float():
            pass
        case str():
            if value not in WORDS:
                look_up(value, key)
        case list() | tuple():
            for index, item in enumerate(value):
                check_config(item, f"{key}[{index}]")
        case {"class_path": str(path), **rest} if not rest.keys() - {"init_args"}:
            known = inspect.signature(look_up(path, f"{key}.class_path")).parameters
            arguments = rest.get("init_args", {})
            check_config(arguments, key)
            for name in arguments if isinstance(arguments, Mapping) else ["init_args"]:
                if name not in known:
                    raise ValueError(f"{key}.{name} is not an argument of {path}{suggest(name, known)}")
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
    """Return what a config may name by a path; None for any other path."""
    return names().get(path) if isinstance(path, str) else None


def look_up(path: str, key: str) -> Callable[..., object]:
    if path not in names():
        hint = suggest(path, names())
        raise ValueError(f"{key} must be one of the names that a config may use, got {path!r:.80}{hint}")
    return names()[path]


def explain_error(message: str, more: Iterable[str] = ()) -> str:
    """jsonargparse's pages in one line: where, as the command line would spell it, and the innermost cause.

    `more` are names that are suggested beside `names()`.
    """
    where = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    inner = re.split(HEADER, message)[-1]
    lines = [line.strip(" -") for line in inner.splitlines()]
    cause = " ".join(line for line in lines if line and not re.match(FRAME, line))
    if not cause:  # nothing but the types that it is not
        kinds = dict.fromkeys(re.findall(r"Expected a <class '([\w.]+)'>", inner)[: None if "Errors:" in inner else 1])
        value = re.findall(r"(?:Got|Given) value: (.*)", inner)
        cause = f"must be {' or '.join(kinds)}, got {', '.join(value[:1])}"
    if (path := re.findall(r"class_path '([^']+)'", message)) and re.search("No module|no attribute", cause):
        cause += suggest(path[-1], [*more, *names()])
    return ": ".join(part for part in (where, re.sub(r"\. Got value: .*", "", cause)) if part)


@cache
def names() -> Mapping[str, Callable[..., object]]:
    """What a config may name: the parts, the models, and some of torch.nn, as exported and as defined."""
    listed = {trunk: trunk.__all__, trunk.init: ("vit", "mae", "clip"), models: models.__all__, nn: TORCH}
    found = {(module.__name__, name): vars(module)[name] for module in listed for name in listed[module]}
    spelled: dict[str, Callable[..., object]] = {}
    for (module, name), value in found.items():
        if callable(value):
            spelled |= {f"{module}.{name}": value, f"{value.__module__}.{value.__qualname__}": value}
            if module.startswith("vitkit") and name in vitkit.__all__:
                spelled[f"vitkit.{name}"] = value  # the shortest, and so the one that jsonargparse writes
    return spelled


def read_yaml(path: Path) -> Mapping[str, object]:
    """Return the config in a YAML file, plain data with present names.

    A few lines of aliases unfold to gigabytes, deep brackets parse for hours: both are refused.
    """
    text = path.read_text("utf-8")
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > 100:
            raise ValueError("config must spell everything out, at most 100 deep, got an alias (*) or deeper brackets")
    config = yaml.safe_load(text)
    if not isinstance(config, Mapping):
        raise ValueError(f"config must be a mapping, got {config!r:.80}")
    return update_names(config)
