"""One attention call of a layer, as seen from outside: the arguments of a kernel, or the layer's own softmax.

B batch, T queries, S keys, H heads, K key/value heads, Dh head width, Dv width of the values.
Hs and Q the selected heads and queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitkit.interpret.see.layers import CaptureError
from vitkit.nn import masks
from vitkit.nn.cores import compute_weights

ROW_TOLERANCE = 1e-3  # largest distance of a row's sum from 1; 16-bit weights may also be off by their rounding


@dataclass(frozen=True)
class Call:
    """A kernel call: softmax(q k' * scale + bias) v over the keys that the mask allows.

    `output` is the result of the layer's own kernel, None where it cannot be seen from outside.
    """

    q: Float[Tensor, "B H T Dh"]
    k: Float[Tensor, "B K S Dh"]
    v: Float[Tensor, "B K S Dv"]
    mask: Bool[Tensor, "#B #H #T #S"] | None
    bias: Float[Tensor, "#B #H #T #S"] | None
    scale: float | None
    output: Float[Tensor, "B H T Dv"] | None
    kind: ClassVar[str] = "kernel"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the weights, (B, H, T, S)."""
        B, H, T, _ = self.q.shape
        return B, H, T, self.k.shape[2]

    @property
    def weights_dtype(self) -> torch.dtype:
        return torch.promote_types(self.q.dtype, torch.float32)

    def compute_weights(
        self, heads: Sequence[int] | None = None, queries: Sequence[int] | None = None
    ) -> Float[Tensor, "B Hs Q S"]:
        """Return the weights of some heads and queries, after the softmax, before dropout, in float32 or float64.

        Raises: CaptureError if a row does not sum to 1.
        """
        groups = self.q.shape[1] // self.k.shape[1]
        owners = None if groups == 1 and heads is None else [h // groups for h in heads or range(self.q.shape[1])]
        q = select_indices(select_indices(self.q, 1, heads), 2, queries).to(self.weights_dtype)
        k = select_indices(self.k, 1, owners).to(self.weights_dtype)
        mask, bias = (
            None if x is None else select_indices(select_indices(x, 1, heads), 2, queries)
            for x in (self.mask, self.bias)
        )
        with torch.autocast(q.device.type, enabled=False):  # the kernel computes its scores in float32, too
            scores = (q * (self.q.shape[-1] ** -0.5 if self.scale is None else self.scale)) @ k.mT
            if bias is not None:  # minus infinity masks a key; a row without keys is 0, as in the kernel
                scores, mask = scores + bias.to(self.weights_dtype), masks.join(mask, bias != -torch.inf)
            return check_row_sums(compute_weights(scores, mask), empty_rows=mask is not None)

    def compute_output(self, weights: Float[Tensor, "B H T S"] | None = None) -> Float[Tensor, "B H T Dv"]:
        """Return the output of the heads, by other weights than the layer's own if given."""
        if weights is None and self.output is not None:
            return self.output
        v = self.v.repeat_interleave(self.q.shape[1] // self.v.shape[1], dim=1)
        return (self.compute_weights() if weights is None else weights).to(v.dtype) @ v


@dataclass(frozen=True)
class Softmax:
    """A softmax that the layer computes itself: its weights can be seen, the output of its heads cannot."""

    probabilities: Float[Tensor, "B H T S"]
    kind: ClassVar[str] = "softmax"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the weights, (B, H, T, S)."""
        B, H, T, S = self.probabilities.shape
        return B, H, T, S

    @property
    def weights_dtype(self) -> torch.dtype:
        return torch.promote_types(self.probabilities.dtype, torch.float32)

    def compute_weights(
        self, heads: Sequence[int] | None = None, queries: Sequence[int] | None = None
    ) -> Float[Tensor, "B Hs Q S"]:
        """Return the weights as `Call.compute_weights` does."""
        weights = select_indices(select_indices(self.probabilities, 1, heads), 2, queries).to(self.weights_dtype)
        return check_row_sums(weights, empty_rows=False, tolerance=torch.finfo(self.probabilities.dtype).eps)


AttentionCall = Call | Softmax


def select_indices(x: Tensor, axis: int, indices: Sequence[int] | None) -> Tensor:
    """Select indices along an axis, all if None; an axis of length 1 is broadcast and stays."""
    if indices is None or x.shape[axis] == 1:
        return x
    return x.index_select(axis, torch.tensor([*indices], device=x.device))


def check_row_sums(
    weights: Float[Tensor, "B Hs Q S"], empty_rows: bool, tolerance: float = ROW_TOLERANCE
) -> Float[Tensor, "B Hs Q S"]:
    """Return weights whose rows sum to 1, or to 0 where `empty_rows` allows it. Raises: CaptureError for others."""
    sums = weights.detach().sum(-1)
    valid = (sums - 1).abs() <= max(tolerance, ROW_TOLERANCE)
    if not (valid | (sums == 0) if empty_rows else valid).all():
        worst = sums[~valid].flatten()[0].item()
        raise CaptureError(f"attention rows must sum to 1, got {worst:g}: the layer computes something else")
    return weights


def expand_to_4d(x: Tensor) -> Tensor:
    """Add leading axes of length 1, up to (B, H, T, S)."""
    return x.view(*(1,) * (4 - x.ndim), *x.shape)
