"""Attention changed from outside: a head that gathers something else, keys that are not seen.

B batch, H heads, T queries, S keys, Dh head width. What a head gathers: softmax(q k' * scale + bias) v.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import Call, Seen, Softmax
from vitkit.interpret.see.layers import NotCaptured, chosen
from vitkit.interpret.see.nesting import editing, hidden, hiding, refuse_edited
from vitkit.interpret.see.seams import Visit, watching


def zero(seen: Seen, head: "Head") -> Tensor:
    """It gathers nothing: what its columns of the projection add is gone, as if they were 0; the bias stays."""
    return torch.zeros_like(own(seen, head))


def permute(seen: Seen, head: "Head") -> Tensor:
    """Each picture gets what the head gathers in the picture before it in the batch, the first that of the last.

    A layer that attends in windows has them in its batch: there windows are exchanged.
    """
    call = gathering(seen, head)
    if call.shape[0] < 2:
        raise ValueError("permute must have at least 2 pictures in a batch to exchange, got 1")
    return own(call, head).roll(1, dims=0)


def uniform(seen: Seen, head: "Head") -> Tensor:
    """It looks at all keys alike that may be seen."""
    return by_weights(seen, head, visible(seen, head).float())


class Fixed:
    """It gathers this for every picture, such as its mean over data: (Dh,), or (T, Dh) for each token."""

    def __init__(self, mean: Float[Tensor, "*T Dh"]) -> None:
        self.mean = mean

    def __call__(self, seen: Seen, head: "Head") -> Tensor:
        now = own(gathering(seen, head), head)
        if self.mean.shape not in (now.shape[1:], now.shape[2:]):
            raise ValueError(
                f"mean must be of shape {tuple(now.shape[2:])} or {tuple(now.shape[1:])} in {head.layer}, "
                f"got {tuple(self.mean.shape)}"
            )
        return self.mean.to(now).expand_as(now)


# Gives what the head is to gather (B, T, Dh); where only the softmax is seen, its weights (B, T, S).
How = Callable[[Seen, "Head"], Tensor]


class Head(NamedTuple):
    """A head of a layer, by the layer's name and from 0, and what to do to it."""

    layer: str
    head: int
    how: How = zero


@contextmanager
def edit(model: nn.Module, *heads: Head) -> Iterator[None]:
    """What runs inside has these heads changed.

        with edit(model, Head("encoder.blocks.0.attn.f", 2)):
            model(images)  # without head 2 of the first layer

    Edits inside edits and knockouts add up. A `capture` inside shows the weights as they are without the edit, a
    softmax of the layer's own those with it.

    Raises:
        ValueError: for a layer or a head that is not there, or is named twice; for an nn.MultiheadAttention that is
            edited around: name its heads in one call.
        NotCaptured: for a layer that did not run, or does not show what the edit needs.
    """
    by_layer: dict[str, list[Head]] = {}
    for head in heads:
        by_layer.setdefault(one_layer(model, head.layer), []).append(head)
    for name, named in by_layer.items():
        if len({head.head for head in named}) < len(named):
            raise ValueError(f"heads must be named once each, got {[head.head for head in named]} in {name}")

    def visit(name: str, seen: Seen) -> Tensor:
        return changed(seen, [head._replace(layer=name) for head in by_layer[name]])

    layers = {name: model.get_submodule(name) for name in by_layer}
    unseen = {name: module for name, module in layers.items() if isinstance(module, nn.MultiheadAttention)}
    refuse_edited(unseen, "an edit of nn.MultiheadAttention")
    with complete(layers, visit), editing(layers):
        yield


@contextmanager
def knockout(model: nn.Module, *patterns: str | int, keys: Bool[Tensor, "*B S"]) -> Iterator[None]:
    """What runs inside does not see these keys in these layers: the softmax is over the others.

    Knockouts inside knockouts add up, and a `capture` inside shows the weights without these keys.

    Args: patterns: as in `layers.chosen`; keys: True where a key is not seen; (S,), or (B, S) for each picture.
    Raises: ValueError for keys of another shape, and inside of an edit of the same layer; NotCaptured for a layer that
    did not run.
    """
    layers, away = chosen(model, patterns), keys.view(-1, 1, 1, keys.shape[-1])
    refuse_edited(layers, "knockout")

    def visit(_: str, seen: Seen) -> Tensor:
        B, S = seen.shape[0], seen.shape[3]
        if keys.shape not in ((S,), (B, S)):
            raise ValueError(f"keys must be of shape ({S},) or ({B}, {S}), got {tuple(keys.shape)}")
        return without(seen, away)

    with complete(layers, visit), hiding(layers, away):
        yield


def without(seen: Seen, keys: Bool[Tensor, "#B 1 1 S"]) -> Tensor:
    if isinstance(seen, Call):
        return replace(hidden(seen, keys), output=None).gathered()
    kept = seen.own.masked_fill(keys.to(seen.own.device), 0)
    return kept / kept.sum(-1, keepdim=True).clamp(min=torch.finfo(kept.dtype).tiny)


@contextmanager
def complete(layers: Mapping[str, nn.Module], visit: Visit) -> Iterator[None]:
    """Watching, where each layer must have run in the end."""
    ran: set[str] = set()

    def noted(name: str, seen: Seen) -> Tensor | None:
        ran.add(name)
        return visit(name, seen)

    with watching(layers, noted):
        yield
    if absent := [name for name in layers if name not in ran]:
        raise NotCaptured(f"layers to change must run, got {', '.join(absent)}, which showed no attention")


def changed(seen: Seen, heads: list[Head]) -> Tensor:
    """What all heads gather (B, H, T, Dh), or their weights (B, H, T, S), with some of them changed."""
    now = seen.gathered() if isinstance(seen, Call) else seen.own
    if isinstance(seen, Call):
        seen = replace(seen, output=now)  # of nn.MultiheadAttention it is computed, which once is enough
    after = now.clone()
    for head in heads:
        if not 0 <= head.head < seen.shape[1]:
            raise ValueError(f"head must be from 0 to {seen.shape[1] - 1} in {head.layer}, got head={head.head}")
        after[:, head.head] = head.how(seen, head).to(after.dtype)
    return after


def one_layer(model: nn.Module, name: str) -> str:
    found = [*chosen(model, [name])]
    if len(found) != 1:
        raise ValueError(f"layer must name one layer, got {name} for {len(found)}: {', '.join(found[:3])}")
    return found[0]


def own(seen: Seen, head: Head) -> Tensor:
    """What the head gathers (B, T, Dh), or its weights (B, T, S)."""
    return (seen.gathered() if isinstance(seen, Call) else seen.own)[:, head.head]


def gathering(seen: Seen, head: Head) -> Call:
    if isinstance(seen, Softmax):
        raise NotCaptured(
            f"{head.layer} takes its softmax by itself: what its heads gather is not seen, so they can only be "
            "zeroed or made uniform"
        )
    return seen


def by_weights(seen: Seen, head: Head, weights: Float[Tensor, "B T S"]) -> Tensor:
    """What the head gathers (B, T, Dh) by rows like these, brought to sum 1; where only the softmax is seen, the rows.

    A row of zeros remains one.
    """
    rows = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    if isinstance(seen, Softmax):
        return rows.to(seen.own.dtype)
    return rows.to(seen.v.dtype) @ seen.v[:, head.head * seen.v.shape[1] // seen.shape[1]]


def visible(seen: Seen, head: Head) -> Bool[Tensor, "B T S"]:
    """Where a key may be seen; a softmax of the layer's own tells it by a weight above 0."""
    if isinstance(seen, Softmax):
        return own(seen, head) > 0
    B, T, S = seen.shape[0], *seen.shape[2:]
    found = torch.ones(B, T, S, dtype=torch.bool, device=seen.q.device)
    if seen.mask is not None:
        found = found & of_head(seen.mask, head.head)
    if seen.bias is not None:  # some write a mask as -inf, some as the lowest number
        found = found & (of_head(seen.bias, head.head) > torch.finfo(seen.bias.dtype).min / 2)
    return found


def of_head(x: Tensor, head: int) -> Tensor:
    """(B, T, S) of (B, H, T, S), where an axis of length 1 is meant for each."""
    return x[:, 0 if x.shape[1] == 1 else head]
