"""What a layer was seen to do: the arguments of a kernel, or a softmax of its own.

B batch, T queries, S keys, H heads, K key/value heads, Dh head width, Dv that of values.
Hs and Q the heads and queries asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitkit.interpret.see.layers import NotCaptured
from vitkit.nn import masks
from vitkit.nn.cores import masked_softmax

ROWS = 1e-3  # how far from 1 a row of weights may be; one of 16 bits as far as its rounding goes


@dataclass(frozen=True)
class Call:
    """What a layer is about to gather: softmax(q k' * scale + bias) v over the keys that the mask lets be seen.

    `output` is what the layer's own kernel made of it, None where that cannot be seen from outside.
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
        """(B, H, T, S)."""
        B, H, T, _ = self.q.shape
        return B, H, T, self.k.shape[2]

    @property
    def exact(self) -> torch.dtype:
        """Of the weights."""
        return torch.promote_types(self.q.dtype, torch.float32)

    def weights(
        self, heads: Sequence[int] | None = None, queries: Sequence[int] | None = None
    ) -> Float[Tensor, "B Hs Q S"]:
        """After the softmax and before dropout, of these heads and query tokens, in float32 at least.

        Raises: NotCaptured where a row does not sum to 1.
        """
        groups = self.q.shape[1] // self.k.shape[1]
        owners = None if groups == 1 and heads is None else [h // groups for h in heads or range(self.q.shape[1])]
        q, k = part(part(self.q, 1, heads), 2, queries).to(self.exact), part(self.k, 1, owners).to(self.exact)
        mask, bias = (None if one is None else part(part(one, 1, heads), 2, queries) for one in (self.mask, self.bias))
        with torch.autocast(q.device.type, enabled=False):  # the kernel too has its scores in float32
            scores = (q * (self.q.shape[-1] ** -0.5 if self.scale is None else self.scale)) @ k.mT
            if bias is not None:  # minus infinity hides; a row of nothing else is 0, as the kernel has it
                scores, mask = scores + bias.to(self.exact), masks.join(mask, bias != -torch.inf)
            return checked(masked_softmax(scores, mask), blind=mask is not None)

    def gathered(self, weights: Float[Tensor, "B H T S"] | None = None) -> Float[Tensor, "B H T Dv"]:
        """By other weights than its own, if there are any."""
        if weights is None and self.output is not None:
            return self.output
        v = self.v.repeat_interleave(self.q.shape[1] // self.v.shape[1], dim=1)
        return (self.weights() if weights is None else weights).to(v.dtype) @ v


@dataclass(frozen=True)
class Softmax:
    """A layer that takes the softmax by itself: its weights are seen, what it gathers by them is not."""

    own: Float[Tensor, "B H T S"]
    kind: ClassVar[str] = "softmax"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, T, S)."""
        B, H, T, S = self.own.shape
        return B, H, T, S

    @property
    def exact(self) -> torch.dtype:
        """Of the weights."""
        return torch.promote_types(self.own.dtype, torch.float32)

    def weights(
        self, heads: Sequence[int] | None = None, queries: Sequence[int] | None = None
    ) -> Float[Tensor, "B Hs Q S"]:
        """As those of a Call."""
        kept = part(part(self.own, 1, heads), 2, queries).to(self.exact)
        return checked(kept, blind=False, tolerance=torch.finfo(self.own.dtype).eps)


Seen = Call | Softmax


def part(x: Tensor, axis: int, places: Sequence[int] | None) -> Tensor:
    """These places of an axis, all if None; an axis of length 1 is meant for each."""
    if places is None or x.shape[axis] == 1:
        return x
    return x.index_select(axis, torch.tensor([*places], device=x.device))


def checked(weights: Float[Tensor, "B Hs Q S"], blind: bool, tolerance: float = ROWS) -> Float[Tensor, "B Hs Q S"]:
    """Args: blind: whether a row may have nothing to look at, and is 0. Raises: NotCaptured."""
    sums = weights.detach().sum(-1)
    right = (sums - 1).abs() <= max(tolerance, ROWS)
    if not (right | (sums == 0) if blind else right).all():
        worst = sums[~right].flatten()[0].item()
        raise NotCaptured(f"rows of attention must sum to 1, got {worst:g}: the layer computes something else")
    return weights


def four(x: Tensor) -> Tensor:
    """With axes in front, up to (B, H, T, S)."""
    return x.view(*(1,) * (4 - x.ndim), *x.shape)
