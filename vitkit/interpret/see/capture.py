"""The weights of attention as they are, of the layers, heads and queries that are asked for.

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

from vitkit.interpret.see.calls import Call, Seen
from vitkit.interpret.see.layers import NotCaptured, chosen
from vitkit.interpret.see.nesting import refuse_edited
from vitkit.interpret.see.seams import watching

BUDGET = "4GB"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class Weights:
    """What one layer looked at: after the softmax, before dropout; every row sums to 1.

    `heads` and `queries` say which rows these are; None for all. `kind` tells how they were seen: the arguments of a
    kernel, from which they are computed (kernel), or the layer's own softmax (softmax).
    """

    layer: str
    weights: Float[Tensor, "B H Q S"]
    heads: tuple[int, ...] | None
    queries: tuple[int, ...] | None
    kind: str


@dataclass(frozen=True)
class Captured(Mapping[str, Weights]):
    """By the name of a layer; its second call, as where a checkpoint runs it anew, is name#2. `of` takes places."""

    found: dict[str, Weights] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Weights:
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def of(self, place: int) -> Weights:
        """In the order in which the layers ran, from either end."""
        return [*self.found.values()][place]


@contextmanager
def capture(
    model: nn.Module,
    *patterns: str | int,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
    budget: int | float | str = BUDGET,
    gradient: bool = False,
) -> Iterator[Captured]:
    """Keep the attention of what runs inside; the model's own kernels give its output, bit by bit as ever.

        with capture(model, -1, queries=[0]) as seen:
            model(images)
        seen.of(0).weights  # (B, H, 1, T): where CLS looks in the last layer

    Args:
        model: vitkit's, or any other that attends by `scaled_dot_product_attention`, by a softmax of its own, or by
            `nn.MultiheadAttention`.
        patterns: layers, as in `layers.chosen`; none means all.
        heads, queries: their places, from 0; None means all. Only what is asked for is computed and takes memory.
        budget: bytes, or such as "500MB", that may be kept.
        gradient: the weights are part of the graph of the output, which is then computed by them, not by the kernel,
            without its dropout and equal but for rounding; for `torch.autograd.grad(score, weights)`.

    Raises:
        ValueError: for a pattern, head or query that is not there; for more than the budget, before it is computed;
            for a gradient inside of an edit of the same layer: edit inside of the capture.
        NotCaptured: when a layer that was asked for has not shown its attention, with the reason.
    """
    if gradient and (heads is not None or queries is not None):
        raise ValueError("gradient must come with all heads and queries: the output is computed by them")
    layers = chosen(model, patterns)
    if gradient:
        refuse_edited(layers, "a gradient")
    keep = Keep(layers, places("heads", heads), places("queries", queries), number_of_bytes(budget), gradient)
    with watching(layers, keep):
        yield keep.captured
    if absent := [f"{name} ({type(layers[name]).__name__})" for name in layers if name not in keep.calls]:
        raise NotCaptured(
            f"{len(absent)} of {len(layers)} layers that were asked for showed no attention: {', '.join(absent[:5])}; "
            "they did not run in this thread, or call neither scaled_dot_product_attention nor softmax; see `coverage`"
        )


class Keep:
    """What is shown of these layers, as far as it is asked for."""

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        heads: tuple[int, ...] | None,
        queries: tuple[int, ...] | None,
        budget: int,
        gradient: bool,
    ) -> None:
        self.layers, self.heads, self.queries, self.budget, self.gradient = layers, heads, queries, budget, gradient
        self.captured, self.held = Captured(), 0
        self.calls: Counter[str] = Counter()

    def __call__(self, name: str, seen: Seen) -> Tensor | None:
        if self.gradient and not torch.is_grad_enabled():
            raise ValueError("gradient must come with gradients enabled, got none; leave torch.no_grad()")
        rows = checked_rows(name, seen, self.heads, self.queries)
        self.calls[name] += 1
        self.hold(name, rows * seen.shape[0] * seen.shape[3] * seen.exact.itemsize)
        try:
            with torch.set_grad_enabled(self.gradient):
                weights = seen.weights(self.heads, self.queries)
        except NotCaptured as error:
            raise NotCaptured(f"{name} cannot be captured: {error}") from error
        if self.gradient and not weights.requires_grad:
            weights.requires_grad_()  # of a model that is frozen, or whose frozen part comes first
        key = name if self.calls[name] == 1 else f"{name}#{self.calls[name]}"
        if isinstance(seen, Call):
            self.captured.found[key] = Weights(key, weights, self.heads, self.queries, seen.kind)
            return seen.gathered(weights) if self.gradient else None
        kept = weights if self.gradient else weights.detach().clone()  # the layer may go on to change its own
        self.captured.found[key] = Weights(key, kept, self.heads, self.queries, seen.kind)
        return weights.to(seen.own.dtype) if self.gradient else None

    def hold(self, name: str, size: int) -> None:
        """Raises: ValueError where these bytes, and those of layers alike that have not run, are too many."""
        to_come = sum(alike(self.layers[name], module) for key, module in self.layers.items() if key not in self.calls)
        total = self.held + size * (1 + to_come)
        if total > self.budget:
            raise ValueError(
                f"budget must hold the weights that are asked for, got budget={amount(self.budget)} for "
                f"{amount(total)}, of which a layer as {name} takes {amount(size)}; "
                f"ask for fewer layers, heads or queries"
            )
        self.held += size


def alike(module: nn.Module, other: nn.Module) -> bool:
    """Whether their parameters have equal shapes, as those of the layers of a stage."""
    return [x.shape for x in module.parameters()] == [x.shape for x in other.parameters()]


def places(title: str, asked: Any) -> tuple[int, ...] | None:
    """Of a list, or of an array or tensor of numbers. Raises: ValueError."""
    try:
        return None if asked is None else tuple(int(place) for place in asked)
    except TypeError:  # of a single number
        raise ValueError(f"{title} must be a list, got {title}={asked}; write {title}=[{asked}]") from None


def checked_rows(name: str, call: Seen, heads: Sequence[int] | None, queries: Sequence[int] | None) -> int:
    """How many rows a picture has among what is asked for."""
    _, H, T, _ = call.shape
    rows = 1
    for title, asked, there in (("heads", heads, H), ("queries", queries, T)):
        if asked is not None and (not asked or min(asked) < 0 or max(asked) >= there):
            raise ValueError(f"{title} must be from 0 to {there - 1} in {name}, got {[*asked]}")
        if asked is not None and len({*asked}) < len(asked):
            raise ValueError(f"{title} must be named once each, got {[*asked]}")
        rows *= there if asked is None else len(asked)
    return rows


def number_of_bytes(budget: int | float | str) -> int:
    found = re.fullmatch(r"(\d+\.?\d*)\s*([KMGT]?B?)", str(budget).strip().upper())
    if not found or found[2] not in UNITS:
        raise ValueError(f"budget must be a number of bytes, or such as 500MB or 2GB, got budget={budget}")
    return int(float(found[1]) * UNITS[found[2]])


def amount(size: int) -> str:
    """Such as 1.5 GB."""
    unit = next((unit for unit in ("TB", "GB", "MB", "KB") if size >= UNITS[unit]), "B")
    return f"{size / UNITS[unit]:.4g} {unit}"
