"""Attention, softmax(q k' * scale + bias) v, and the cores that compute it.

B batch, T queries, S keys, D width, M memory width, H heads, K key/value heads, Dh head width.
https://arxiv.org/abs/1706.03762, grouped heads https://arxiv.org/abs/2305.13245
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitkit.nn import masks
from vitkit.nn.cache import LayerCache
from vitkit.nn.positions import Rotate, identity


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
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
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


class Attention(nn.Module):
    """Each of T tokens gathers from S: from x itself, or from a memory where `memory_dim` is given.

    `core` has no parameters and may be exchanged at any time; `heads` taps what each head gathered, (B, H, T, Dh).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        memory_dim: int | None = None,
        causal: bool = False,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        qk_norm: Callable[[int], nn.Module] | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kv_heads = kv_heads or heads
        if head_dim is None and dim % heads:
            raise ValueError(f"dim must be a multiple of heads unless head_dim is given, got dim={dim}, heads={heads}")
        if heads % kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got heads={heads}, kv_heads={kv_heads}")
        self.head_dim = head_dim or dim // heads
        self.memory_dim, self.causal, self.scale, self.dropout = memory_dim, causal, scale, dropout
        self.widths = [heads, kv_heads, kv_heads]  # rows of the fused projection, in heads: first q, then k, then v
        if memory_dim is None:
            self.qkv = nn.Linear(dim, sum(self.widths) * self.head_dim, bias)
        else:
            self.q = nn.Linear(dim, heads * self.head_dim, bias)
            self.kv = nn.Linear(memory_dim, 2 * kv_heads * self.head_dim, bias)
        self.q_norm = nn.Identity() if qk_norm is None else qk_norm(self.head_dim)
        self.k_norm = nn.Identity() if qk_norm is None else qk_norm(self.head_dim)
        self.core: nn.Module = MeasuredCore()
        self.heads = nn.Identity()
        self.out = nn.Linear(heads * self.head_dim, dim, bias)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S M"] | None = None,
        *,
        mask: Bool[Tensor, "#B #H #T #keys"] | None = None,
        bias: Float[Tensor, "#B #H #T #keys"] | None = None,
        rotate: Rotate = identity,
        rotate_memory: Rotate = identity,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        if (memory is None) != (self.memory_dim is None):
            raise ValueError(f"memory must be given exactly where memory_dim is, got memory_dim={self.memory_dim}")
        if memory is None:
            q, k, v = self.split(self.qkv(x)).split(self.widths, dim=1)
            k = rotate(self.k_norm(k))
            k, v = (k, v) if cache is None else cache.add(k, v)
        elif cache is not None and cache.memory is not None:
            q, (k, v) = self.split(self.q(x)), cache.memory
        else:
            q, (k, v) = self.split(self.q(x)), self.split(self.kv(memory)).split(self.widths[1:], dim=1)
            k = rotate_memory(self.k_norm(k))
            if cache is not None:
                cache.memory = k, v
        dropout = self.dropout if self.training else 0.0
        gathered = self.core(rotate(self.q_norm(q)), k, v, mask, bias, self.causal, self.scale, dropout)
        return self.out(self.heads(gathered).transpose(1, 2).flatten(2))

    def split(self, x: Float[Tensor, "B T inner"]) -> Float[Tensor, "B heads T Dh"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
