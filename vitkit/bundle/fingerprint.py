"""What tells two models apart: all that their embeddings depend on, in 32 letters."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.data import tokenizer


def fingerprint(bundle: Bundle) -> str:
    """Equal for equal weights, architecture, preprocessing and tokenizer, wherever and whenever they are opened.

    It takes about as long as reading the weights.
    """
    told = [get_preprocess(bundle).to_dict(), list(bundle.class_names), [*settings(bundle.model)]]
    told += [{} if bundle.tokenizer is None else dict(tokenizer.format_tokenizer(bundle.tokenizer))]
    return digest(told, bundle.model.state_dict())


def digest(told: object, state: Mapping[str, Tensor]) -> str:
    """Of what JSON can hold, and of numbers under their names."""
    total = hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(state.items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def settings(model: nn.Module) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Of each module its name, its class, and what it was built with: activations and heads have no weights.

    Of torch's own modules only what they call constants, since others come and go from release to release.
    """
    for name, module in model.named_modules():
        kind = type(module)
        held = {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training"}
        if kind.__module__.startswith("torch."):
            held = {key: held[key] for key in getattr(kind, "__constants__", ()) if key in held}
        yield name, f"{kind.__module__}.{kind.__qualname__}", {key: plain(held[key]) for key in sorted(held)}


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
