"""What is open around: edits and knockouts of a layer, of which those inside of them must know.

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
def hiding(layers: Mapping[str, nn.Module], keys: Bool[Tensor, "#B 1 1 S"]) -> Iterator[None]:
    """What opens inside is shown these layers without these keys."""
    around = HIDDEN.get()
    token = HIDDEN.set({**around, **{one: around[one] | keys if one in around else keys for one in layers.values()}})
    try:
        yield
    finally:
        HIDDEN.reset(token)


@contextmanager
def editing(layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """What would undo edits of these layers is refused inside."""
    token = EDITED.set(EDITED.get() | {*layers.values()})
    try:
        yield
    finally:
        EDITED.reset(token)


def refuse_edited(layers: Mapping[str, nn.Module], what: str) -> None:
    """Raises: ValueError for layers that are edited around, and would be computed anew by `what`."""
    if edited := [name for name, module in layers.items() if module in EDITED.get()]:
        raise ValueError(f"{what} must be around an edit of the same layer, got it inside of that of {edited[0]}")


def hidden(call: Call, keys: Bool[Tensor, "#B 1 1 S"] | None) -> Call:
    """Without these keys."""
    return call if keys is None else replace(call, mask=masks.join(call.mask, ~keys.to(call.q.device)))
