"""Open edits and knockouts, by layer, which nested contexts have to know.

B batch, S keys.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType

from jaxtyping import Bool
from torch import Tensor, nn

from vitkit.interpret.see.calls import Call
from vitkit.nn import masks

HIDDEN: ContextVar[Mapping[nn.Module, Tensor]] = ContextVar("hidden", default=MappingProxyType({}))  # (#B, 1, 1, S)
EDITED: ContextVar[frozenset[nn.Module]] = ContextVar("edited", default=frozenset())


@contextmanager
def hide_keys(layers: Mapping[str, nn.Module], keys: Bool[Tensor, "#B 1 1 S"]) -> Iterator[None]:
    """Hide keys of these layers from contexts that are opened inside."""
    outer = HIDDEN.get()
    inner = {layer: outer[layer] | keys if layer in outer else keys for layer in layers.values()}
    token = HIDDEN.set({**outer, **inner})
    try:
        yield
    finally:
        HIDDEN.reset(token)


@contextmanager
def mark_edited(layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """Mark layers as edited, so that `refuse_edited` refuses them inside."""
    token = EDITED.set(EDITED.get() | {*layers.values()})
    try:
        yield
    finally:
        EDITED.reset(token)


def refuse_edited(layers: Mapping[str, nn.Module], context: str) -> None:
    """Raise a ValueError if an outer context edits one of these layers: `context` would undo the edit."""
    if edited := [name for name, module in layers.items() if module in EDITED.get()]:
        raise ValueError(f"{context} must be around an edit of the same layer, got it inside an edit of {edited[0]}")


def mask_call_keys(call: Call, keys: Bool[Tensor, "#B 1 1 S"] | None) -> Call:
    """Return the call with some keys masked."""
    return call if keys is None else replace(call, mask=masks.join(call.mask, ~keys.to(call.q.device)))
