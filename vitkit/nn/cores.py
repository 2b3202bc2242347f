"""Attention cores: functions of queries, keys and values. They have no parameters, so any can replace another.

FusedCore, ExplicitCore and MeasuredCore compute softmax attention, softmax(q k' * scale + bias) v, over the keys that
the mask allows (https://arxiv.org/abs/1706.03762, equation 1).
B batch, T queries, S keys, H heads, K key/value heads, Dh head width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitkit.nn import masks


class FusedCore(nn.Module):
    """Softmax attention by PyTorch's fused kernels, which never store the (T, S) weights."""

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
        is_causal = causal and T == S and mask is None and bias is None
        if causal and not is_causal:
            mask = masks.join(mask, masks.lower_right(T, S, q.device))
        attn_mask = mask
        if bias is not None:  # the kernel takes a mask or a bias, not both: masked scores become -inf
            attn_mask = bias.to(q.dtype) if mask is None else torch.where(mask, bias.to(q.dtype), -torch.inf)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal, scale=scale, enable_gqa=grouped)


class ExplicitCore(nn.Module):
    """Softmax attention step by step. A hook on `weights` reads or replaces the attention weights (B, H, T, S)."""

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
        weights = self.weights(compute_weights(scores, mask))
        return F.dropout(weights, dropout) @ v


def compute_weights(
    scores: Float[Tensor, "B H T S"], mask: Bool[Tensor, "#B #H #T #S"] | None
) -> Float[Tensor, "B H T S"]:
    """Compute the softmax over the keys that the mask allows. A query without any has zero weights and gradients."""
    if mask is None:
        return scores.softmax(dim=-1)
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~mask, 0)


def has_fast_bfloat16(device: str) -> bool:
    """Return whether the hardware multiplies bfloat16 matrices: CUDA from capability 8.0, CPUs with AVX512-BF16 or AMX.

    Linear layers in bfloat16 took a third of float32's time on such a CPU, and 5-8 times that time with AVX2 alone.
    """
    if device == "cuda":
        return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return device == "cpu" and any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


# As torch.compiler.assume_constant_result does, whose call would import the compiler and take two seconds.
has_fast_bfloat16.__dict__["_dynamo_marked_constant"] = True


def explicit_is_faster(device: str, dtype: torch.dtype, S: int, gradient: bool) -> bool:
    """Return whether the explicit core was measured to be faster than the fused one.

    On a CPU with fast bfloat16 it trained 2-6 times as fast up to 197 keys (torch 2.14), because the fused backward
    pass is slow there. The fused core is faster in float32, for long sequences, on CUDA, on CPUs that emulate bfloat16,
    and without gradients.
    """
    return gradient and device == "cpu" and dtype == torch.bfloat16 and S <= 256 and has_fast_bfloat16("cpu")


class MeasuredCore(nn.Module):
    """Softmax attention by FusedCore or ExplicitCore, whichever is faster for the inputs, see `explicit_is_faster`."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.explicit = FusedCore(), ExplicitCore()

    def forward(self, q: Float[Tensor, "B H T Dh"], k: Float[Tensor, "B K S Dh"], *rest: Any, **options: Any) -> Tensor:
        explicit = explicit_is_faster(q.device.type, q.dtype, k.shape[2], q.requires_grad)
        return (self.explicit if explicit else self.fused)(q, k, *rest, **options)


class WindowCore(nn.Module):
    """Softmax attention within a window: a query sees the keys less than `size` tokens away.

    In a causal layer these are its own token and the size - 1 before it (https://arxiv.org/abs/2004.05150).
    Distances count tokens, whatever their positions. The queries are the last T of the S tokens, as in a causal layer.
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
        if max(T, S) > self.size:  # a mask would keep shorter sequences from the fast causal kernel
            queries, keys = (torch.arange(start, S, device=q.device)[None, :, None] for start in (S - T, 0))
            mask = masks.join(mask, masks.window(queries, keys, self.size - 1))
        return self.inner(q, k, v, mask, bias, causal, scale, dropout)


class LinearCore(nn.Module):
    """Linear attention: phi(q) (phi(k)' v) / (phi(q) (sum of phi(k) over S)) with phi = elu + 1.

    https://arxiv.org/abs/2006.16236, equation 5. The (T, S) weights are never computed, so time grows with T + S. A
    mask may hide keys, but the same keys from all queries.

    Raises: ValueError for a causal layer, a mask for each query, a bias, a scale and dropout, which need a softmax.
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
        options = {"causal": causal, "a mask for each query": per_query, "a bias": bias is not None}
        options |= {"a scale": scale is not None, "dropout": dropout > 0}
        if unsupported := [name for name, given in options.items() if given]:
            raise ValueError(f"core must compute a softmax for {', '.join(unsupported)}, got core=LinearCore")
        S = k.shape[2]
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if mask is not None:
            k = k.masked_fill(~mask.mT, 0)
        # Means over S, since sums overflow in float16. The paper's code and LoFTR add 1e-6 to the sum: here 1e-6 / S.
        epsilon = max(1e-6 / S, torch.finfo(q.dtype).tiny)
        return (q @ (k.mT @ (v / S))) / (q @ k.mean(dim=2, keepdim=True).mT + epsilon)


def repeat_heads(x: Float[Tensor, "B K S Dh"], heads: int) -> Float[Tensor, "B {heads} S Dh"]:
    """Repeat each of the K key or value heads for the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
