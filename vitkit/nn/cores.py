"""Cores: how queries gather from keys and values. They have no parameters, and one takes the place of another.

FusedCore, ExplicitCore and MeasuredCore compute the softmax's: softmax(q k' * scale + bias) v, over the keys that the
mask shows.
B batch, T queries, S keys, H heads, K key/value heads, Dh head width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitkit.nn import masks


class FusedCore(nn.Module):
    """PyTorch's fused kernels: the (T, S) weights never exist."""

    def forward(
        self,
        q: Float[Tensor, "B H T Dh"],
        k: Float[Tensor, "B K S Dh"],
        v: Float[Tensor, "B K S Dh"],
        mask: Bool[Tensor, "#B #H #T #S"] | None = None,
        bias: Float[Tensor, "#B #H #T #S"] | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "B H T Dh"]:
        T, S = q.shape[2], k.shape[2]
        kernel_causal = causal and T == S and mask is None and bias is None
        if causal and not kernel_causal:
            mask = masks.join(mask, masks.lower_right(T, S, q.device))
        added = mask
        if bias is not None:  # the kernel takes one tensor: here alone a mask becomes a number
            added = bias.to(q.dtype) if mask is None else torch.where(mask, bias.to(q.dtype), -torch.inf)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, added, dropout, kernel_causal, scale=scale, enable_gqa=grouped)


class ExplicitCore(nn.Module):
    """The same numbers step by step; the weights (B, H, T, S) pass a named tap, to be read or replaced by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Identity()

    def forward(
        self,
        q: Float[Tensor, "B H T Dh"],
        k: Float[Tensor, "B K S Dh"],
        v: Float[Tensor, "B K S Dh"],
        mask: Bool[Tensor, "#B #H #T #S"] | None = None,
        bias: Float[Tensor, "#B #H #T #S"] | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "B H T Dh"]:
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        if causal:
            mask = masks.join(mask, masks.lower_right(q.shape[2], k.shape[2], q.device))
        scores = (q * (scale or q.shape[-1] ** -0.5)) @ k.mT
        if bias is not None:
            scores = scores + bias.to(q.dtype)
        weights = self.weights(masked_softmax(scores, mask))
        return F.dropout(weights, dropout) @ v


def masked_softmax(
    scores: Float[Tensor, "B H T S"], mask: Bool[Tensor, "#B #H #T #S"] | None
) -> Float[Tensor, "B H T S"]:
    """Softmax over the keys that may be seen; a row that may see none is zero, in value and gradient."""
    if mask is None:
        return scores.softmax(dim=-1)
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~mask, 0)


def fast_bfloat16(device: str) -> bool:
    """Whether the hardware multiplies bfloat16 matrices itself: CUDA from capability 8.0, CPUs with AVX512-BF16 or AMX.

    Such a CPU took a third of the time of float32 in linear layers; one with AVX2 alone took 5-8 times as long.
    """
    if device == "cuda":
        return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    able = torch.cpu.get_capabilities()
    return device == "cpu" and any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


# As torch.compiler.assume_constant_result does, which takes two seconds to import the compiler.
fast_bfloat16.__dict__["_dynamo_marked_constant"] = True


def explicit_is_faster(device: str, dtype: torch.dtype, S: int, gradient: bool) -> bool:
    """The measured choice of core: on a CPU with fast bfloat16 the explicit one trains 2-6 times as fast up to 197
    keys (torch 2.14), because the fused backward is slow there; float32, long sequences, CUDA, CPUs that emulate
    bfloat16, and a forward pass alone want the fused one."""
    return gradient and device == "cpu" and dtype == torch.bfloat16 and S <= 256 and fast_bfloat16("cpu")


class MeasuredCore(nn.Module):
    """The faster of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.explicit = FusedCore(), ExplicitCore()

    def forward(self, q: Float[Tensor, "B H T Dh"], k: Float[Tensor, "B K S Dh"], *rest: Any, **options: Any) -> Tensor:
        explicit = explicit_is_faster(q.device.type, q.dtype, k.shape[2], q.requires_grad)
        return (self.explicit if explicit else self.fused)(q, k, *rest, **options)


class WindowCore(nn.Module):
    """The softmax's, where a query sees the keys less than `size` tokens away: in a causal layer itself and the
    size - 1 before it (https://arxiv.org/abs/2004.05150).

    Tokens count, wherever their positions are. The last query stands at the last key, as in a causal layer.
    """

    def __init__(self, *, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"size must be at least 1, got size={size}")
        self.size, self.inner = size, MeasuredCore()

    def forward(
        self,
        q: Float[Tensor, "B H T Dh"],
        k: Float[Tensor, "B K S Dh"],
        v: Float[Tensor, "B K S Dh"],
        mask: Bool[Tensor, "#B #H #T #S"] | None = None,
        bias: Float[Tensor, "#B #H #T #S"] | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "B H T Dh"]:
        T, S = q.shape[2], k.shape[2]
        if max(T, S) > self.size:  # otherwise a causal layer keeps its fast kernel
            queries, keys = (torch.arange(start, S, device=q.device)[None, :, None] for start in (S - T, 0))
            mask = masks.join(mask, masks.window(queries, keys, self.size - 1))
        return self.inner(q, k, v, mask, bias, causal, scale, dropout)


class LinearCore(nn.Module):
    """phi(q) (phi(k)' v) / (phi(q) sum of phi(k) over S), phi = elu + 1: https://arxiv.org/abs/2006.16236, equation 5.

    Weights (T, S) never exist, and time grows with T + S. A mask may hide keys, the same ones from all queries.

    Raises: ValueError for what it lacks: a causal layer, a mask for each query, a bias, a scale, dropout.
    """

    def forward(
        self,
        q: Float[Tensor, "B H T Dh"],
        k: Float[Tensor, "B K S Dh"],
        v: Float[Tensor, "B K S Dh"],
        mask: Bool[Tensor, "#B #H #T #S"] | None = None,
        bias: Float[Tensor, "#B #H #T #S"] | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "B H T Dh"]:
        per_query = mask is not None and mask.shape[2] > 1
        asked = {"causal": causal, "a mask for each query": per_query, "a bias": bias is not None}
        asked |= {"a scale": scale is not None, "dropout": dropout > 0}
        if refused := [name for name, given in asked.items() if given]:
            raise ValueError(f"core must be of a softmax for {', '.join(refused)}, got core=LinearCore")
        S = k.shape[2]
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if mask is not None:
            k = k.masked_fill(~mask.mT, 0)
        # Means over S in place of sums, which are beyond float16. 1e-6 is that of the paper's code and of LoFTR's.
        least = max(1e-6 / S, torch.finfo(q.dtype).tiny)
        return (q @ (k.mT @ (v / S))) / (q @ k.mean(dim=2, keepdim=True).mT + least)


def repeat_heads(x: Float[Tensor, "B K S Dh"], heads: int) -> Float[Tensor, "B {heads} S Dh"]:
    """Keys or values for each head of queries, where K of them are shared by groups."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
