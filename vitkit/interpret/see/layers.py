"""Which modules of a model attend, by name. The model may be anybody's."""

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from vitkit.nn import Attention, ExplicitCore, FusedCore, MeasuredCore

CALLED = re.compile(r"attention|attn|^(MHSA|GPSA|XCA|LiteMLA|(Diff)?ParallelScalingBlock)$", re.IGNORECASE)


# Classes whose softmax is no attention of tokens to tokens, or not all of it.
REFUSED = {
    "XCA": "attends from channels to channels, not from tokens to tokens",
    "ChannelAttention": "attends from channels to channels, not from tokens to tokens",
    "ChannelAttentionV2": "attends from channels to channels, not from tokens to tokens",
    "OutlookAttention": "weighs a neighbourhood without comparing tokens",
    "GPSA": "blends two softmaxes, one of places, by a gate",
    "LiteMLA": "is linear: there are no weights",
    "LinearSelfAttention": "is linear: its softmax weighs the sequence once, for all queries",
    "TalkingHeadAttn": "mixes its heads after the softmax: rows do not sum to 1",
    "DiffParallelScalingBlock": "subtracts one softmax from another: rows do not sum to 1",
    "DiffAttention": "subtracts one softmax from another: rows do not sum to 1",
    "CascadedGroupAttention": "feeds each head what the one before it gathered, with a softmax for each",
}


class NotCaptured(ValueError):
    """A layer that was asked for did not show its attention; the message says why."""


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers by their dotted names, in the order in which the model holds them.

    A layer is a module whose class is called attention, and that holds no other such module.
    """
    found = {name: module for name, module in model.named_modules() if CALLED.search(type(module).__name__)}
    return {name: module for name, module in found.items() if not any(inside(other, name) for other in found)}


def refusals(layers: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the reason for each layer that cannot be captured, where its class or core says so."""
    kinds = {name: type(module).__name__ for name, module in layers.items()}
    reasons = {name: f"{kind} {REFUSED[kind]}" for name, kind in kinds.items() if kind in REFUSED}
    cores = {name: module.core for name, module in layers.items() if isinstance(module, Attention)}
    without = {name: type(core).__name__ for name, core in cores.items() if not softmax_cores(core)}
    return reasons | {name: f"its core {kind} has no softmax: there are no weights" for name, kind in without.items()}


def softmax_cores(core: nn.Module) -> list[nn.Module]:
    """Return the outermost softmax cores in a core: the mask that they get is the whole one, whatever wraps them."""
    if isinstance(core, FusedCore | ExplicitCore | MeasuredCore):
        return [core]
    return [inner for part in core.children() for inner in softmax_cores(part)]


def full_name(module: nn.Module) -> str:
    """Of its class, with where it is defined."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def inside(name: str, parent: str) -> bool:
    return name != parent and (not parent or name.startswith(f"{parent}."))


def chosen(model: nn.Module, patterns: Sequence[str | int]) -> dict[str, nn.Module]:
    """The layers that are asked for, in the model's order.

    Args:
        patterns: places among `attention_layers`, from either end; names, or names with * in them, of layers or of what
            holds layers. A name of a module without such a layer means that module itself. None at all: every layer.

    Raises: ValueError for a pattern that means nothing, with the nearest names.
    """
    layers, modules = attention_layers(model), dict(model.named_modules(remove_duplicate=False))
    first = {module: name for name, module in model.named_modules()}  # a module may have several names
    everywhere = [name for name, module in modules.items() if first[module] in layers]
    names: set[str] = set()
    wrong: list[str] = []
    for pattern in patterns or layers:
        found = placed(list(layers), pattern) if isinstance(pattern, int) else matching(everywhere, modules, pattern)
        names |= {first[modules[name]] for name in found}
        wrong += [] if found else [str(pattern)]
    if not layers and (wrong or not patterns):
        got = f", got {', '.join(wrong)}" if wrong else ""
        raise NotCaptured(f"{type(model).__name__} has no module that is called attention; name one{got}")
    if wrong:
        near = difflib.get_close_matches(wrong[0], layers, n=3, cutoff=0.3) or list(layers)[:3]
        raise ValueError(
            f"patterns must name layers of the model, got {', '.join(wrong)}; it has {len(layers)}, "
            f"from 0 to {len(layers) - 1}, such as {', '.join(near)}"
        )
    return {name: module for name, module in model.named_modules() if name in names}


def placed(layers: Sequence[str], place: int) -> set[str]:
    return {layers[place]} if -len(layers) <= place < len(layers) else set()


def matching(layers: Sequence[str], modules: Mapping[str, nn.Module], pattern: str) -> set[str]:
    named = {name for name in modules if fnmatchcase(name, pattern)}
    held = {layer for layer in layers if any(layer == name or inside(layer, name) for name in named)}
    return held or named
