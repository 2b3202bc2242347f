"""Position schemes within attention: rotate queries and keys, or add a bias to the scores. Embeddings: tables.py.

B batch, T queries, S keys, H heads, Dh head width, A position axes (1 for text, 2 for images: row, column).
Angles and distances are computed in float32 (float64 for float64 positions), whatever the model's dtype.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

Rotate = Callable[[Tensor], Tensor]


def identity(x: Tensor) -> Tensor:
    return x


class Position(nn.Module):
    """The interface of position schemes, called once per forward pass. This one does nothing."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim

    def rotation(self, positions: Real[Tensor, "#B T A"]) -> Rotate:
        """Return the function that rotates queries or keys (B, H, T, Dh) at these positions."""
        return identity

    def bias(
        self, queries: Real[Tensor, "#B T A"], keys: Real[Tensor, "#B S A"]
    ) -> Float[Tensor, "#B {self.heads} T S"] | None:
        """Return the bias to add to the attention scores; None for no bias."""
        return None


class Rotary(Position):
    """RoPE (https://arxiv.org/abs/2104.09864): rotate pairs of channels (i, i + Dh / 2) by angles position * frequency.

    Each axis has an equal share of the pairs, at frequencies base^(-k / pairs). At the origin the rotation is the
    identity, so prefix tokens stay as they are.
    """

    def __init__(self, heads: int, head_dim: int, *, axes: int = 1, base: float = 10_000.0) -> None:
        super().__init__(heads, head_dim)
        if head_dim % (2 * axes):
            raise ValueError(f"head_dim must be a multiple of 2 * axes, got head_dim={head_dim}, axes={axes}")
        self.axes, self.base = axes, base

    def rotation(self, positions: Real[Tensor, "#B T A"]) -> Rotate:
        if positions.shape[-1] != self.axes:
            raise ValueError(f"positions must have axes={self.axes} numbers each, got {positions.shape[-1]}")
        positions = positions.to(torch.promote_types(positions.dtype, torch.float32))
        pairs = self.head_dim // (2 * self.axes)
        frequencies = self.base ** -(torch.arange(pairs, device=positions.device, dtype=positions.dtype) / pairs)
        angles = (positions[..., None] * frequencies).flatten(-2)[:, None]  # (B, 1, T, Dh / 2)
        return partial(rotate_pairs, cos=angles.cos(), sin=angles.sin())


def rotate_pairs(x: Float[Tensor, "B H T Dh"], *, cos: Tensor, sin: Tensor) -> Float[Tensor, "B H T Dh"]:
    """Rotate each pair of channels (i, i + Dh / 2) by its angle."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)  # in float32: bfloat16 is too coarse for angles
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


class ALiBi(Position):
    """ALiBi (https://arxiv.org/abs/2108.12409, section 3): score - 2^(-8 h / H) distance, for head h = 1 to H.

    Distances are summed over the axes. The first `prefix` tokens have no position: as query or key their bias is 0.
    """

    def __init__(self, heads: int, head_dim: int, *, prefix: int = 0) -> None:
        super().__init__(heads, head_dim)
        self.prefix = prefix

    def bias(
        self, queries: Real[Tensor, "#B T A"], keys: Real[Tensor, "#B S A"]
    ) -> Float[Tensor, "#B {self.heads} T S"]:
        offsets = keys[:, None] - queries[:, :, None]  # (B, T, S, A)
        distance = offsets.to(torch.promote_types(offsets.dtype, torch.float32)).abs().sum(-1)[:, None]
        heads = torch.arange(1, self.heads + 1, device=distance.device, dtype=distance.dtype)
        slopes = 2.0 ** (-8 * heads / self.heads)
        return fill_prefix(-slopes[:, None, None] * distance, self.prefix, 0.0)


class RelativeBias(Position):
    """T5's bias (https://arxiv.org/abs/1910.10683, section 2.1): a learned number for each head and bucket of offsets.

    Half of the buckets hold one offset each, the others grow logarithmically up to `reach`. Each axis has a table of
    its own; their biases are summed. The first `prefix` tokens have no position: one learned number per head serves
    all of them.

    Args: backward_only: all buckets are for keys before the query; otherwise half of them are for keys after it.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        axes: int = 1,
        buckets: int = 32,
        reach: int = 128,
        backward_only: bool = False,
        prefix: int = 0,
    ) -> None:
        super().__init__(heads, head_dim)
        if buckets % 4 or reach <= buckets:
            raise ValueError(f"buckets must be a multiple of 4 and below reach, got buckets={buckets}, reach={reach}")
        self.buckets, self.reach, self.backward_only, self.prefix = buckets, reach, backward_only, prefix
        self.weight = nn.Parameter(torch.zeros(axes, buckets, heads))
        self.prefix_weight = nn.Parameter(torch.zeros(heads)) if prefix else None

    def bias(
        self, queries: Real[Tensor, "#B T A"], keys: Real[Tensor, "#B S A"]
    ) -> Float[Tensor, "#B {self.heads} T S"]:
        buckets = self.find_buckets(keys[:, None] - queries[:, :, None])  # (B, T, S, A)
        tables = [table[buckets[..., axis]] for axis, table in enumerate(self.weight)]
        bias = torch.stack(tables).sum(dim=0).permute(0, 3, 1, 2)
        return bias if self.prefix_weight is None else fill_prefix(bias, self.prefix, self.prefix_weight[:, None, None])

    def find_buckets(self, offset: Real[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        """Return the buckets of keys that are `offset` steps ahead of their queries."""
        buckets = self.buckets if self.backward_only else self.buckets // 2
        side = torch.zeros_like(offset) if self.backward_only else (offset > 0) * buckets
        distance = (-offset).clamp(min=0) if self.backward_only else offset.abs()
        exact = buckets // 2
        growth = (distance.clamp(min=1) / exact).log() / math.log(self.reach / exact) * (buckets - exact)
        far = (exact + growth.long()).clamp(max=buckets - 1)
        return (side + torch.where(distance < exact, distance, far)).long()


def fill_prefix(bias: Float[Tensor, "#B H T S"], prefix: int, value: Tensor | float) -> Float[Tensor, "#B H T S"]:
    """Return `bias` with `value` wherever the query or the key is one of the prefix tokens."""
    if not prefix:
        return bias
    T, S = bias.shape[-2:]
    keys = torch.arange(S, device=bias.device) < prefix
    queries = keys[S - T :]  # with a cache, the queries are the last T of the S tokens
    return torch.where(queries[:, None] | keys, value, bias)
