"""What can be captured of a model, layer by layer. B batch, W windows, T queries, S keys, H heads."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitkit.interpret.see.calls import Seen
from vitkit.interpret.see.layers import NotCaptured, chosen, refusals
from vitkit.interpret.see.seams import watching

SILENT = "did not run, or calls neither scaled_dot_product_attention nor softmax"


class Covered(NamedTuple):
    """How a layer was seen, and how often; or why it cannot be captured.

    Args:
        kind: kernel, where weights are computed from a kernel's arguments; softmax, where they are the layer's own.
        shape: (B, H, T, S) of the first call, B W in place of B where the layer attends in windows.
    """

    layer: str
    module: str
    kind: str | None
    calls: int
    shape: tuple[int, int, int, int] | None
    reason: str | None

    def __str__(self) -> str:
        if self.reason:
            return f"{self.layer} ({self.module}): not captured: {self.reason}"
        return f"{self.layer} ({self.module}): {self.kind}, {self.calls} x {self.shape}"


@torch.no_grad()
def coverage(model: nn.Module, *inputs: Any, patterns: Sequence[str | int] = (), **options: Any) -> tuple[Covered, ...]:
    """Each layer, after one pass of `model(*inputs, **options)`, of which one row of weights at a time is kept.

    Args: patterns: as in `layers.chosen`; none means all.
    """
    layers = chosen(model, patterns)
    reasons = refusals(layers)
    shapes: dict[str, list[tuple[str, tuple[int, int, int, int]]]] = {name: [] for name in layers}

    def look(name: str, call: Seen) -> Tensor | None:
        try:
            call.weights([0], [0])
        except NotCaptured as error:
            reasons.setdefault(name, str(error))
        shapes[name].append((call.kind, call.shape))
        return None

    def refuse(name: str, error: NotCaptured) -> None:
        reasons.setdefault(name, str(error))

    with watching({name: layers[name] for name in layers if name not in reasons}, look, refuse):
        model(*inputs, **options)
    found = []
    for name, module in layers.items():
        kind, calls = type(module).__name__, shapes[name]
        reason = reasons.get(name) or (None if calls else SILENT)
        first = None if reason else calls[0]
        found.append(Covered(name, kind, first and first[0], len(calls), first and first[1], reason))
    return tuple(found)
