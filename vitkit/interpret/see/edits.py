"""Edits of attention from outside a model: heads with another output, and masked keys.

B batch, H heads, T queries, S keys, Dh head width. The output of a head: softmax(q k' * scale + bias) v.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall, Call, Softmax
from vitkit.interpret.see.hooks import Visit, watch_layers
from vitkit.interpret.see.layers import CaptureError, select_layers
from vitkit.interpret.see.nesting import hide_keys, mark_edited, mask_call_keys, refuse_edited


def zero(call: AttentionCall, head: "Head") -> Tensor:
    """Replace the output of a head by zeros, as if its columns of the projection were 0; the bias stays."""
    return torch.zeros_like(get_head(call, head))


def permute(call: AttentionCall, head: "Head") -> Tensor:
    """Give each image the head's output for the previous image in the batch; the first gets that of the last.

    In a layer with window attention the batch consists of windows, so windows are exchanged instead.
    """
    call = require_output(call, head)
    if call.shape[0] < 2:
        raise ValueError("permute must have at least 2 images in a batch to exchange, got 1")
    return get_head(call, head).roll(1, dims=0)


def attend_uniformly(call: AttentionCall, head: "Head") -> Tensor:
    """Give all keys that the mask allows the same weight."""
    return apply_weights(call, head, find_visible_keys(call, head).float())


class FixedOutput:
    """An edit that gives every image the same output, such as the mean over data: (Dh,), or (T, Dh) by token."""

    def __init__(self, mean: Float[Tensor, "*T Dh"]) -> None:
        self.mean = mean

    def __call__(self, call: AttentionCall, head: "Head") -> Tensor:
        output = get_head(require_output(call, head), head)
        if self.mean.shape not in (output.shape[1:], output.shape[2:]):
            raise ValueError(
                f"mean must be of shape {tuple(output.shape[2:])} or {tuple(output.shape[1:])} in {head.layer}, "
                f"got {tuple(self.mean.shape)}"
            )
        return self.mean.to(output).expand_as(output)


# Returns the head's new output (B, T, Dh); for a Softmax its new weights (B, T, S).
Replacement = Callable[[AttentionCall, "Head"], Tensor]


class Head(NamedTuple):
    """A head, by the name of its layer and its index from 0, and the edit to apply."""

    layer: str
    head: int
    how: Replacement = zero


@contextmanager
def edit(model: nn.Module, *heads: Head) -> Iterator[None]:
    """Edit heads while the context is open.

        with edit(model, Head("encoder.blocks.0.attn.f", 2)):
            model(images)  # without head 2 of the first layer

    Nested edits and knockouts add up. A `capture` inside sees the weights without the edit; for a softmax of the
    layer's own it sees the edited ones.

    Raises:
        ValueError: for an unknown layer or head, or one given twice; for an nn.MultiheadAttention inside another edit
            of it: give all its heads in one call.
        CaptureError: for a layer that did not run, or does not show what the edit needs.
    """
    heads_by_layer: dict[str, list[Head]] = {}
    for head in heads:
        heads_by_layer.setdefault(find_single_layer(model, head.layer), []).append(head)
    for name, layer_heads in heads_by_layer.items():
        if len({head.head for head in layer_heads}) < len(layer_heads):
            raise ValueError(f"heads must be named once each, got {[head.head for head in layer_heads]} in {name}")

    def visit(name: str, call: AttentionCall) -> Tensor:
        return edit_heads(call, [head._replace(layer=name) for head in heads_by_layer[name]])

    layers = {name: model.get_submodule(name) for name in heads_by_layer}
    opaque = {name: module for name, module in layers.items() if isinstance(module, nn.MultiheadAttention)}
    refuse_edited(opaque, "an edit of nn.MultiheadAttention")
    with watch_all(layers, visit), mark_edited(layers):
        yield


@contextmanager
def knockout(model: nn.Module, *patterns: str | int, keys: Bool[Tensor, "*B S"]) -> Iterator[None]:
    """Mask keys in some layers while the context is open: the softmax is over the other keys.

    Nested knockouts add up, and a `capture` inside sees the weights without these keys.

    Args: patterns: as in `layers.select_layers`; keys: True where a key is masked, (S,), or (B, S) for each image.
    Raises: ValueError for keys of another shape, and inside an edit of the same layer; CaptureError for a layer that
    did not run.
    """
    layers, masked = select_layers(model, patterns), keys.view(-1, 1, 1, keys.shape[-1])
    refuse_edited(layers, "knockout")

    def visit(_: str, call: AttentionCall) -> Tensor:
        B, S = call.shape[0], call.shape[3]
        if keys.shape not in ((S,), (B, S)):
            raise ValueError(f"keys must be of shape ({S},) or ({B}, {S}), got {tuple(keys.shape)}")
        return remove_keys(call, masked)

    with watch_all(layers, visit), hide_keys(layers, masked):
        yield


def remove_keys(call: AttentionCall, keys: Bool[Tensor, "#B 1 1 S"]) -> Tensor:
    """Return the output of all heads (B, H, T, Dh) with some keys masked; for a Softmax, the weights (B, H, T, S)."""
    if isinstance(call, Call):
        return replace(mask_call_keys(call, keys), output=None).compute_output()
    return normalise_rows(call.probabilities.masked_fill(keys.to(call.probabilities.device), 0))


def normalise_rows(weights: Float[Tensor, "*B S"]) -> Float[Tensor, "*B S"]:
    """Scale rows to sum to 1; a row of zeros stays."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


@contextmanager
def watch_all(layers: Mapping[str, nn.Module], visit: Visit) -> Iterator[None]:
    """Watch layers as `watch_layers` does. Raises: CaptureError if one of them has not run at the end."""
    calls: set[str] = set()

    def record(name: str, call: AttentionCall) -> Tensor | None:
        calls.add(name)
        return visit(name, call)

    with watch_layers(layers, record):
        yield
    if absent := [name for name in layers if name not in calls]:
        raise CaptureError(f"edited layers must run, got {', '.join(absent)}, which showed no attention")


def edit_heads(call: AttentionCall, heads: list[Head]) -> Tensor:
    """Return the output of all heads (B, H, T, Dh), or their weights (B, H, T, S), with some heads edited."""
    before = call.compute_output() if isinstance(call, Call) else call.probabilities
    if isinstance(call, Call):
        call = replace(call, output=before)  # so that nn.MultiheadAttention's is computed only once
    after = before.clone()
    for head in heads:
        if not 0 <= head.head < call.shape[1]:
            raise ValueError(f"head must be from 0 to {call.shape[1] - 1} in {head.layer}, got head={head.head}")
        after[:, head.head] = head.how(call, head).to(after.dtype)
    return after


def find_single_layer(model: nn.Module, name: str) -> str:
    names = [*select_layers(model, [name])]
    if len(names) != 1:
        raise ValueError(f"layer must name one layer, got {name} for {len(names)}: {', '.join(names[:3])}")
    return names[0]


def get_head(call: AttentionCall, head: Head) -> Tensor:
    """Return the output of one head (B, T, Dh), or its weights (B, T, S)."""
    return (call.compute_output() if isinstance(call, Call) else call.probabilities)[:, head.head]


def require_output(call: AttentionCall, head: Head) -> Call:
    """Return the call if the output of its heads can be seen. Raises: CaptureError otherwise."""
    if isinstance(call, Softmax):
        raise CaptureError(
            f"{head.layer} computes its own softmax: the output of its heads is not visible, so they can only be "
            "zeroed or made uniform"
        )
    return call


def apply_weights(call: AttentionCall, head: Head, weights: Float[Tensor, "B T S"]) -> Tensor:
    """Return the output (B, T, Dh) of a head with new weights, scaled to rows of sum 1; for a Softmax, the weights."""
    rows = normalise_rows(weights)
    if isinstance(call, Softmax):
        return rows.to(call.probabilities.dtype)
    return rows.to(call.v.dtype) @ call.v[:, head.head * call.v.shape[1] // call.shape[1]]


def find_visible_keys(call: AttentionCall, head: Head) -> Bool[Tensor, "B T S"]:
    """Return the keys that the mask allows; for a Softmax, the keys with a weight above 0."""
    if isinstance(call, Softmax):
        return get_head(call, head) > 0
    B, T, S = call.shape[0], *call.shape[2:]
    visible = torch.ones(B, T, S, dtype=torch.bool, device=call.q.device)
    if call.mask is not None:
        visible = visible & select_head(call.mask, head.head)
    if call.bias is not None:  # a mask may be written as -inf, or as the lowest number
        visible = visible & (select_head(call.bias, head.head) > torch.finfo(call.bias.dtype).min / 2)
    return visible


def select_head(x: Tensor, head: int) -> Tensor:
    """Select (B, T, S) from (B, H, T, S); a head axis of length 1 is broadcast."""
    return x[:, 0 if x.shape[1] == 1 else head]
