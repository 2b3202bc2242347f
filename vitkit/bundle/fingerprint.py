"""Fingerprints: 32 letters that differ between models as soon as their embeddings may.

A fingerprint outlives versions of the package: databases and caches are kept under it. So an argument that a class, the
preprocessing or the tokenizer gains is left out while it holds its default, and a class that has moved keeps the path
under which it was first defined; see first_version.py.
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


def fingerprint(bundle: Bundle) -> str:
    """Return a digest that is equal for equal weights, architecture, preprocessing, class names and tokenizer.

    It takes about as long as reading the weights.
    """
    description = [describe_preprocess(bundle.preprocess), list(bundle.class_names), [*settings(bundle.model)]]
    return digest([*description, describe_tokenizer(bundle.tokenizer)], bundle.model.state_dict())


def digest(description: object, state: Mapping[str, Tensor]) -> str:
    """Return the digest of what JSON can hold, and of tensors under their names."""
    total = hashlib.blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(state.items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def describe_preprocess(preprocess: Preprocess | None) -> dict[str, Any]:
    """Return the fields of the preprocessing without later ones that hold their defaults; {} for None."""
    return {} if preprocess is None else leave_out_defaults(preprocess.to_dict(), type(preprocess), PREPROCESS)


def describe_tokenizer(tokenizer: Tokenizer | None) -> dict[str, str]:
    """Return the files of the tokenizer, without later fields of text.json that hold their defaults; {} for None."""
    if tokenizer is None:
        return {}
    files = dict(data_tokenizer.format_tokenizer(tokenizer))
    fields = leave_out_defaults(json.loads(files[data_tokenizer.TEXT]), type(tokenizer), TOKENIZER)
    order = [name for name in TOKENIZER if name in fields] + sorted(fields.keys() - {*TOKENIZER})
    return files | {data_tokenizer.TEXT: json.dumps({name: fields[name] for name in order}, indent=2) + "\n"}


def settings(module: nn.Module, name: str = "", known: set[nn.Module] | None = None) -> Iterator[Settings]:
    """Yield of each module its name, its class, and what it was built with: activations and heads have no weights."""
    known = set() if known is None else known
    known.add(module)
    fields = describe_fields(module)
    yield name, first_path(type(module)), {key: plain(fields[key]) for key in sorted(fields)}
    for key, child in module.named_children():
        if child not in known and not is_later_default(module, key, child):
            yield from settings(child, f"{name}.{key}".lstrip("."), known)


def first_path(kind: type[nn.Module]) -> str:
    """Return the path of a class as first defined; of later ones of vitkit no module, so that they may move."""
    if not is_vitkit(kind):
        return f"{kind.__module__}.{kind.__qualname__}"
    return f"{CLASSES[kind.__qualname__].module if kind.__qualname__ in CLASSES else 'vitkit'}.{kind.__qualname__}"


def is_vitkit(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("vitkit.")


def first_fields(kind: type[nn.Module]) -> tuple[str, ...]:
    return CLASSES[kind.__qualname__].fields if kind.__qualname__ in CLASSES else ()


def describe_fields(module: nn.Module) -> dict[str, Any]:
    """Return the public attributes of a module, of vitkit's own without later ones that hold their defaults.

    Of torch's own modules only what they call constants, since others come and go from release to release.
    """
    kind = type(module)
    fields = {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training"}
    if kind.__module__.startswith("torch."):
        return {key: fields[key] for key in getattr(kind, "__constants__", ()) if key in fields}
    return leave_out_defaults(fields, kind, first_fields(kind)) if is_vitkit(kind) else fields


def is_later_default(module: nn.Module, name: str, child: nn.Module) -> bool:
    """Return whether a submodule is not of the first version, and is its argument's default; without one, nothing."""
    kind = type(module)
    if not is_vitkit(kind) or name in first_fields(kind):
        return False
    make = defaults(kind).get(name)
    if not callable(make):
        return type(child) is nn.Identity
    try:
        inspect.signature(make).bind()
    except TypeError:  # a factory that needs sizes
        return False
    return isinstance(made := make(), nn.Module) and [*settings(made)] == [*settings(child)]


def leave_out_defaults(fields: Mapping[str, Any], kind: Callable[..., object], first: Container[str]) -> dict[str, Any]:
    """Return the fields without those that are not of the first version and hold the default of an argument."""
    known = defaults(kind)
    return {
        name: value
        for name, value in fields.items()
        if name in first or name not in known or not equal(value, known[name])
    }


def equal(value: object, default: object) -> bool:
    """Return whether a value is a default; 1 is 1.0, and JSON makes lists of tuples."""
    match value, default:
        case Tensor(), _:
            return False
        case ((tuple() | list()), (tuple() | list())):
            return [*value] == [*default]
    return value == default


@cache
def defaults(kind: Callable[..., object]) -> Mapping[str, object]:
    """Return the defaults of a constructor's arguments by their names."""
    arguments = inspect.signature(kind).parameters.values()
    return {argument.name: argument.default for argument in arguments if argument.default is not argument.empty}


def plain(value: Any) -> str:
    """Functions by their names, which unlike their places in memory are always the same."""
    match value:
        case Tensor():
            return str(tuple(value.shape))
        case tuple() | list():
            return f"[{', '.join(map(plain, value))}]"
        case None | bool() | int() | float() | str():
            return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)
