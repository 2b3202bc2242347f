"""Attention weights of selected layers, heads and queries, captured as a model runs.

B batch, H heads, Q queries, S keys.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall, Call
from vitkit.interpret.see.hooks import watch_layers
from vitkit.interpret.see.layers import CaptureError, select_layers
from vitkit.interpret.see.nesting import refuse_edited

BUDGET = "4GB"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class LayerWeights:
    """Attention weights of one layer: after the softmax, before dropout; every row sums to 1.

    `heads` and `queries` are the indices that were selected, None for all. `kind` is "kernel" for weights computed
    from the arguments of a kernel, "softmax" for the layer's own softmax.
    """

    layer: str
    weights: Float[Tensor, "B H Q S"]
    heads: tuple[int, ...] | None
    queries: tuple[int, ...] | None
    kind: str


@dataclass(frozen=True)
class AttentionWeights(Mapping[str, LayerWeights]):
    """Captured weights by layer name; a layer's second call (as with checkpointing) is named name#2."""

    layers: dict[str, LayerWeights] = field(default_factory=dict)

    def __getitem__(self, name: str) -> LayerWeights:
        return self.layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def get_layer(self, index: int) -> LayerWeights:
        """Return the weights of a layer by its index in the order of execution, negative from the end."""
        return [*self.layers.values()][index]


@contextmanager
def capture(
    model: nn.Module,
    *patterns: str | int,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
    budget: int | float | str = BUDGET,
    gradient: bool = False,
) -> Iterator[AttentionWeights]:
    """Capture attention weights while the context is open; the model's output stays bit-identical.

        with capture(model, -1, queries=[0]) as attention:
            model(images)
        attention.get_layer(0).weights  # (B, H, 1, T): attention of CLS in the last layer

    Args:
        model: vitkit's, or any other whose layers use `scaled_dot_product_attention`, a softmax of their own, or
            `nn.MultiheadAttention`.
        patterns: layers, as in `layers.select_layers`; none means all.
        heads, queries: indices from 0; None means all. Only the selected weights are computed and stored.
        budget: the most memory for the weights, in bytes or such as "500MB".
        gradient: make the weights part of the output's graph, for `torch.autograd.grad(score, weights)`. The output is
            then computed from them instead of by the kernel: without its dropout, equal but for rounding.

    Raises:
        ValueError: for an unknown pattern, head or query; for more than the budget, before anything is computed; for
            `gradient` inside an edit of the same layer: edit inside the capture.
        CaptureError: for a selected layer whose attention could not be seen, with the reason.
    """
    if gradient and (heads is not None or queries is not None):
        raise ValueError("gradient must come with all heads and queries: the output is computed from them")
    layers = select_layers(model, patterns)
    if gradient:
        refuse_edited(layers, "a gradient")
    recorder = Recorder(
        layers, parse_indices("heads", heads), parse_indices("queries", queries), parse_bytes(budget), gradient
    )
    with watch_layers(layers, recorder):
        yield recorder.weights
    if absent := [f"{name} ({type(layers[name]).__name__})" for name in layers if name not in recorder.calls]:
        raise CaptureError(
            f"{len(absent)} of {len(layers)} selected layers showed no attention: {', '.join(absent[:5])}; "
            "they did not run in this thread, or call neither scaled_dot_product_attention nor softmax; see `coverage`"
        )


class Recorder:
    """A visitor that stores the selected weights of each call, within a budget of bytes."""

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        heads: tuple[int, ...] | None,
        queries: tuple[int, ...] | None,
        budget: int,
        gradient: bool,
    ) -> None:
        self.layers, self.heads, self.queries, self.budget, self.gradient = layers, heads, queries, budget, gradient
        self.weights, self.size = AttentionWeights(), 0
        self.calls: Counter[str] = Counter()

    def __call__(self, name: str, call: AttentionCall) -> Tensor | None:
        if self.gradient and not torch.is_grad_enabled():
            raise ValueError("gradient must come with gradients enabled, got none; leave torch.no_grad()")
        rows = count_rows(name, call, self.heads, self.queries)
        self.calls[name] += 1
        self.reserve(name, rows * call.shape[0] * call.shape[3] * call.weights_dtype.itemsize)
        try:
            with torch.set_grad_enabled(self.gradient):
                weights = call.compute_weights(self.heads, self.queries)
        except CaptureError as error:
            raise CaptureError(f"{name} cannot be captured: {error}") from error
        if self.gradient and not weights.requires_grad:
            weights.requires_grad_()  # the model, or its first part, is frozen
        key = name if self.calls[name] == 1 else f"{name}#{self.calls[name]}"
        if isinstance(call, Call):
            self.weights.layers[key] = LayerWeights(key, weights, self.heads, self.queries, call.kind)
            return call.compute_output(weights) if self.gradient else None
        stored = weights if self.gradient else weights.detach().clone()  # the layer may modify its own in place
        self.weights.layers[key] = LayerWeights(key, stored, self.heads, self.queries, call.kind)
        return weights.to(call.probabilities.dtype) if self.gradient else None

    def reserve(self, name: str, size: int) -> None:
        """Count a layer's bytes. Raises: ValueError if they, with those of equal layers to come, exceed the budget."""
        remaining = [module for key, module in self.layers.items() if key not in self.calls]
        equal = sum(have_equal_shapes(self.layers[name], module) for module in remaining)
        total = self.size + size * (1 + equal)
        if total > self.budget:
            raise ValueError(
                f"budget must hold the selected weights, got budget={format_bytes(self.budget)} for "
                f"{format_bytes(total)}, of which a layer such as {name} takes {format_bytes(size)}; "
                f"select fewer layers, heads or queries"
            )
        self.size += size


def have_equal_shapes(module: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules have parameters of equal shapes, as the layers of one stage do."""
    return [x.shape for x in module.parameters()] == [x.shape for x in other.parameters()]


def parse_indices(title: str, indices: Any) -> tuple[int, ...] | None:
    """Return the indices of a list, array or tensor. Raises: ValueError for a single number."""
    try:
        return None if indices is None else tuple(int(index) for index in indices)
    except TypeError:
        raise ValueError(f"{title} must be a list, got {title}={indices}; write {title}=[{indices}]") from None


def count_rows(name: str, call: AttentionCall, heads: Sequence[int] | None, queries: Sequence[int] | None) -> int:
    """Return the number of selected rows of an image. Raises: ValueError for a head or query out of range."""
    _, H, T, _ = call.shape
    rows = 1
    for title, indices, count in (("heads", heads, H), ("queries", queries, T)):
        if indices is not None and (not indices or min(indices) < 0 or max(indices) >= count):
            raise ValueError(f"{title} must be from 0 to {count - 1} in {name}, got {[*indices]}")
        if indices is not None and len({*indices}) < len(indices):
            raise ValueError(f"{title} must be named once each, got {[*indices]}")
        rows *= count if indices is None else len(indices)
    return rows


def parse_bytes(budget: int | float | str) -> int:
    match = re.fullmatch(r"(\d+\.?\d*)\s*([KMGT]?B?)", str(budget).strip().upper())
    if not match or match[2] not in UNITS:
        raise ValueError(f"budget must be a number of bytes, or such as 500MB or 2GB, got budget={budget}")
    return int(float(match[1]) * UNITS[match[2]])


def format_bytes(size: int) -> str:
    """Return a size such as 1.5 GB."""
    unit = next((unit for unit in ("TB", "GB", "MB", "KB") if size >= UNITS[unit]), "B")
    return f"{size / UNITS[unit]:.4g} {unit}"
