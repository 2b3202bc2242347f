"""Multi-head attention: the projections around a core. See cores.py for the cores.

B batch, T queries, S keys, D width, M memory width, H heads, K key/value heads, Dh head width.
Multi-head attention: https://arxiv.org/abs/1706.03762, section 3.2; grouped heads: https://arxiv.org/abs/2305.13245
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitkit.nn.cache import LayerCache
from vitkit.nn.cores import MeasuredCore
from vitkit.nn.positions import Rotate, identity
from vitkit.nn.residual import Branch


class AttentionBranch(Branch):
    """Abstract: an attention layer of an Encoder, which builds its position scheme for heads of width `head_dim`."""

    head_dim: int


class Attention(AttentionBranch):
    """Self-attention among the T tokens of x or, with `memory_dim`, cross-attention to the S tokens of a memory.

    `core` computes softmax(q k' * scale + bias) v for each head. It has no parameters and can be replaced at any time.
    `heads` is an identity for hooks on the output of each head, (B, H, T, Dh), before the output projection.

    Args:
        kv_heads: K, a divisor of H; each key/value head is shared by H / K query heads. H by default.
        scale: Dh^-1/2 by default.
        qk_norm: called with Dh, once for the norm of the queries and once for that of the keys.
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
        core: Callable[[], nn.Module] = MeasuredCore,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if head_dim is None and dim % heads:
            raise ValueError(f"dim must be a multiple of heads unless head_dim is given, got dim={dim}, heads={heads}")
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got heads={heads}, kv_heads={kv_heads}")
        self.head_dim = head_dim or dim // heads
        self.memory_dim, self.causal, self.scale, self.dropout = memory_dim, causal, scale, dropout
        self.widths = [heads, kv_heads, kv_heads]  # heads of q, k and v, in the order of the rows of `qkv`
        if memory_dim is None:
            self.qkv = nn.Linear(dim, sum(self.widths) * self.head_dim, bias)
        else:
            self.q = nn.Linear(dim, heads * self.head_dim, bias)
            self.kv = nn.Linear(memory_dim, 2 * kv_heads * self.head_dim, bias)
        self.q_norm = nn.Identity() if qk_norm is None else qk_norm(self.head_dim)
        self.k_norm = nn.Identity() if qk_norm is None else qk_norm(self.head_dim)
        self.core = core()
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
            q, k, v = self.split_heads(self.qkv(x)).split(self.widths, dim=1)
            k = rotate(self.k_norm(k))
            k, v = (k, v) if cache is None else cache.add(k, v)
        elif cache is not None and cache.memory is not None:
            q, (k, v) = self.split_heads(self.q(x)), cache.memory
        else:
            q, kv = self.split_heads(self.q(x)), self.split_heads(self.kv(memory))
            k, v = kv.split(self.widths[1:], dim=1)
            k = rotate_memory(self.k_norm(k))
            if cache is not None:
                cache.memory = k, v
        dropout = self.dropout if self.training else 0.0
        values = self.core(rotate(self.q_norm(q)), k, v, mask, bias, self.causal, self.scale, dropout)
        return self.out(self.heads(values).transpose(1, 2).flatten(2))

    @property
    def last(self) -> nn.Linear:
        return self.out

    def split_heads(self, x: Float[Tensor, "B T inner"]) -> Float[Tensor, "B heads T Dh"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
