"""Attention layers of a model, by name; the model may come from any library."""

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from vitkit.nn import Attention, ExplicitCore, FusedCore, MeasuredCore

ATTENTION_CLASS = re.compile(r"attention|attn|^(MHSA|GPSA|XCA|LiteMLA|(Diff)?ParallelScalingBlock)$", re.IGNORECASE)

# Classes whose softmax is no attention of tokens to tokens, or not all of it.
UNSUPPORTED = {
    "XCA": "attends from channels to channels, not from tokens to tokens",
    "ChannelAttention": "attends from channels to channels, not from tokens to tokens",
    "ChannelAttentionV2": "attends from channels to channels, not from tokens to tokens",
    "OutlookAttention": "weights a neighbourhood without comparing tokens",
    "GPSA": "blends two softmaxes, one of them of positions, by a gate",
    "LiteMLA": "is linear: there are no weights",
    "LinearSelfAttention": "is linear: its softmax weights the sequence once, for all queries",
    "TalkingHeadAttn": "mixes its heads after the softmax: rows do not sum to 1",
    "DiffParallelScalingBlock": "subtracts one softmax from another: rows do not sum to 1",
    "DiffAttention": "subtracts one softmax from another: rows do not sum to 1",
    "CascadedGroupAttention": "feeds each head the output of the one before, with a softmax for each",
}


class CaptureError(ValueError):
    """The attention of a selected layer cannot be seen; the message says why."""


def find_attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention layers by dotted name, in the order of the model's modules.

    A layer is a module whose class name says attention, and that contains no other such module.
    """
    modules = {name: module for name, module in model.named_modules() if ATTENTION_CLASS.search(type(module).__name__)}
    return {name: module for name, module in modules.items() if not any(is_inside(other, name) for other in modules)}


def explain_unsupported(layers: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the reason for each layer that cannot be captured because of its class or core."""
    kinds = {name: type(module).__name__ for name, module in layers.items()}
    reasons = {name: f"{kind} {UNSUPPORTED[kind]}" for name, kind in kinds.items() if kind in UNSUPPORTED}
    cores = {name: module.core for name, module in layers.items() if isinstance(module, Attention)}
    others = {name: type(core).__name__ for name, core in cores.items() if not find_softmax_cores(core)}
    return reasons | {name: f"its core {kind} has no softmax: there are no weights" for name, kind in others.items()}


def find_softmax_cores(core: nn.Module) -> list[nn.Module]:
    """Return the outermost softmax cores in a core: they get the whole mask, whatever wraps them."""
    if isinstance(core, FusedCore | ExplicitCore | MeasuredCore):
        return [core]
    return [inner for child in core.children() for inner in find_softmax_cores(child)]


def get_class_path(module: nn.Module) -> str:
    """Return the name of a module's class with the module that defines it."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def is_inside(name: str, parent: str) -> bool:
    return name != parent and (not parent or name.startswith(f"{parent}."))


def select_layers(model: nn.Module, patterns: Sequence[str | int]) -> dict[str, nn.Module]:
    """Return the layers that match some pattern, in the model's order.

    Args:
        patterns: indices into `find_attention_layers`, negative from the end; names, or names with *, of layers or of
            modules that contain layers. The name of a module without layers selects the module itself. No patterns at
            all select every layer.

    Raises: ValueError for a pattern without a match, with the nearest names.
    """
    layers, modules = find_attention_layers(model), dict(model.named_modules(remove_duplicate=False))
    first_names = {module: name for name, module in model.named_modules()}  # a module may have several names
    layer_names = [name for name, module in modules.items() if first_names[module] in layers]
    names: set[str] = set()
    unknown: list[str] = []
    for pattern in patterns or layers:
        if isinstance(pattern, int):
            matches = {list(layers)[pattern]} if -len(layers) <= pattern < len(layers) else set()
        else:
            matches = match_layers(layer_names, modules, pattern)
        names |= {first_names[modules[name]] for name in matches}
        unknown += [] if matches else [str(pattern)]
    if not layers and (unknown or not patterns):
        got = f", got {', '.join(unknown)}" if unknown else ""
        raise CaptureError(f"{type(model).__name__} has no module that is called attention; name one{got}")
    if unknown:
        near = difflib.get_close_matches(unknown[0], layers, n=3, cutoff=0.3) or list(layers)[:3]
        raise ValueError(
            f"patterns must name layers of the model, got {', '.join(unknown)}; it has {len(layers)}, "
            f"from 0 to {len(layers) - 1}, such as {', '.join(near)}"
        )
    return {name: module for name, module in model.named_modules() if name in names}


def match_layers(layers: Sequence[str], modules: Mapping[str, nn.Module], pattern: str) -> set[str]:
    """Return the layers in the modules that match a pattern; without any layer, these modules."""
    matches = {name for name in modules if fnmatchcase(name, pattern)}
    inner = {layer for layer in layers if any(layer == name or is_inside(layer, name) for name in matches)}
    return inner or matches
