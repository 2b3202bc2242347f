"""Coverage of a model's attention layers by `capture`. B batch, W windows, T queries, S keys, H heads."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall
from vitkit.interpret.see.hooks import watch_layers
from vitkit.interpret.see.layers import CaptureError, explain_unsupported, select_layers

NO_ATTENTION = "did not run, or calls neither scaled_dot_product_attention nor softmax"


class LayerCoverage(NamedTuple):
    """Coverage of a layer: the source of its weights and the number of calls, or why it cannot be captured.

    Args:
        kind: "kernel" for weights computed from a kernel's arguments, "softmax" for the layer's own.
        shape: (B, H, T, S) of the first call, (B W, H, T, S) for windowed attention.
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
def coverage(
    model: nn.Module, *inputs: Any, patterns: Sequence[str | int] = (), **options: Any
) -> tuple[LayerCoverage, ...]:
    """Return the coverage of each layer after one pass of `model(*inputs, **options)`, keeping one row at a time.

    Args: patterns: as in `layers.select_layers`; none means all.
    """
    layers = select_layers(model, patterns)
    reasons = explain_unsupported(layers)
    calls: dict[str, list[tuple[str, tuple[int, int, int, int]]]] = {name: [] for name in layers}

    def record(name: str, call: AttentionCall) -> Tensor | None:
        try:
            call.compute_weights([0], [0])
        except CaptureError as error:
            reasons.setdefault(name, str(error))
        calls[name].append((call.kind, call.shape))
        return None

    def refuse(name: str, error: CaptureError) -> None:
        reasons.setdefault(name, str(error))

    with watch_layers({name: layers[name] for name in layers if name not in reasons}, record, refuse):
        model(*inputs, **options)
    rows = []
    for name, module in layers.items():
        reason = reasons.get(name) or (None if calls[name] else NO_ATTENTION)
        kind, shape = (None, None) if reason else calls[name][0]
        rows.append(LayerCoverage(name, type(module).__name__, kind, len(calls[name]), shape, reason))
    return tuple(rows)
