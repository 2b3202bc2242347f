"""Fingerprints: 32 letters that differ between models whose embeddings may differ.

A fingerprint must stay the same in later versions of the package, since databases and caches are stored under it. So a
new argument of a class, of the preprocessing or of the tokenizer is left out while it has its default, and a class that
moves keeps its first path; see first_version.py.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.first_version import CLASSES, PREPROCESS, TOKENIZER
from vitkit.data import tokenizer as data_tokenizer
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer

Settings = tuple[str, str, dict[str, str]]


def compute_fingerprint(bundle: Bundle) -> str:
    """Return the digest of a model's weights, architecture, preprocessing, class names and tokenizer.

    It takes about as long as reading the weights.
    """
    description = [describe_preprocess(bundle.preprocess), list(bundle.class_names), [*iterate_settings(bundle.model)]]
    return compute_digest([*description, describe_tokenizer(bundle.tokenizer)], bundle.model.state_dict())


def compute_digest(description: object, state: Mapping[str, Tensor]) -> str:
    """Return the digest of a description that JSON can hold, and of tensors by name."""
    digest = hashlib.blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def describe_preprocess(preprocess: Preprocess | None) -> dict[str, Any]:
    """Return the fields of the preprocessing but later ones with their defaults; {} for None."""
    return {} if preprocess is None else leave_out_defaults(preprocess.to_dict(), type(preprocess), PREPROCESS)


def describe_tokenizer(tokenizer: Tokenizer | None) -> dict[str, str]:
    """Return the files of the tokenizer; text.json without later fields that have their defaults; {} for None."""
    if tokenizer is None:
        return {}
    files = dict(data_tokenizer.format_tokenizer(tokenizer))
    fields = leave_out_defaults(json.loads(files[data_tokenizer.TEXT]), type(tokenizer), TOKENIZER)
    order = [name for name in TOKENIZER if name in fields] + sorted(fields.keys() - {*TOKENIZER})
    return files | {data_tokenizer.TEXT: json.dumps({name: fields[name] for name in order}, indent=2) + "\n"}


def iterate_settings(module: nn.Module, name: str = "", known: set[nn.Module] | None = None) -> Iterator[Settings]:
    """Yield the name, class and settings of each module, since activations and numbers of heads have no weights."""
    known = set() if known is None else known
    known.add(module)
    fields = describe_fields(module)
    yield name, get_first_path(type(module)), {key: format_value(fields[key]) for key in sorted(fields)}
    for key, child in module.named_children():
        if child not in known and not is_later_default(module, key, child):
            yield from iterate_settings(child, f"{name}.{key}".lstrip("."), known)


def get_first_path(kind: type[nn.Module]) -> str:
    """Return the first path of a class; for later classes of vitkit one without the module, so that they may move."""
    if not is_vitkit(kind):
        return f"{kind.__module__}.{kind.__qualname__}"
    return f"{CLASSES[kind.__qualname__].module if kind.__qualname__ in CLASSES else 'vitkit'}.{kind.__qualname__}"


def is_vitkit(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("vitkit.")


def get_first_fields(kind: type[nn.Module]) -> tuple[str, ...]:
    return CLASSES[kind.__qualname__].fields if kind.__qualname__ in CLASSES else ()


def describe_fields(module: nn.Module) -> dict[str, Any]:
    """Return the public attributes of a module; for modules of vitkit without later ones that have their defaults.

    For modules of torch only its constants, since other attributes change from release to release.
    """
    kind = type(module)
    fields = {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training"}
    if kind.__module__.startswith("torch."):
        return {key: fields[key] for key in getattr(kind, "__constants__", ()) if key in fields}
    return leave_out_defaults(fields, kind, get_first_fields(kind)) if is_vitkit(kind) else fields


def is_later_default(module: nn.Module, name: str, child: nn.Module) -> bool:
    """Return whether a submodule is later than the first version and a default: of its argument, or an Identity."""
    kind = type(module)
    if not is_vitkit(kind) or name in get_first_fields(kind):
        return False
    factory = get_defaults(kind).get(name)
    if not callable(factory):
        return type(child) is nn.Identity
    try:
        inspect.signature(factory).bind()
    except TypeError:  # a factory that needs sizes
        return False
    return isinstance(default := factory(), nn.Module) and [*iterate_settings(default)] == [*iterate_settings(child)]


def leave_out_defaults(fields: Mapping[str, Any], kind: Callable[..., object], first: Container[str]) -> dict[str, Any]:
    """Return the fields without those that are later than the first version and have the default of an argument."""
    defaults = get_defaults(kind)
    return {
        name: value
        for name, value in fields.items()
        if name in first or name not in defaults or not is_default(value, defaults[name])
    }


def is_default(value: object, default: object) -> bool:
    """Return whether a value equals a default; 1 equals 1.0, and a list a tuple, since JSON has no tuples."""
    match value, default:
        case Tensor(), _:
            return False
        case ((tuple() | list()), (tuple() | list())):
            return [*value] == [*default]
    return value == default


@cache
def get_defaults(kind: Callable[..., object]) -> Mapping[str, object]:
    """Return the defaults of a constructor's arguments by their names."""
    arguments = inspect.signature(kind).parameters.values()
    return {argument.name: argument.default for argument in arguments if argument.default is not argument.empty}


def format_value(value: Any) -> str:
    """Format a value; a function as its name, since its address changes from run to run."""
    match value:
        case Tensor():
            return str(tuple(value.shape))
        case tuple() | list():
            return f"[{', '.join(map(format_value, value))}]"
        case None | bool() | int() | float() | str():
            return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)
