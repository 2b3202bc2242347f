"""The Transformer encoder of every model, for any modality: tokens (B, T, D) in, tokens (B, T, D) out.

B batch, T tokens, S keys, D width, M memory width, H heads, A position axes.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float, Real
from torch import Tensor, nn

from vitkit.nn import masks
from vitkit.nn.attention import Attention, AttentionBranch
from vitkit.nn.cache import Cache, LayerCache
from vitkit.nn.mlp import MLP
from vitkit.nn.positions import Position, Rotate, identity
from vitkit.nn.residual import LayerNorm, Norm, PreNorm, Residual


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, then an MLP, each with its residual connection.

    Blocks keep no state, so a model of two sequences may call them in a loop of its own.
    """

    def __init__(self, attn: Residual, cross: Residual | None, mlp: Residual) -> None:
        super().__init__()
        self.attn, self.cross, self.mlp = attn, cross, mlp

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "#B #H #T #S"] | None = None,
        bias: Float[Tensor, "#B #H #T #S"] | None = None,
        rotate: Rotate = identity,
        memory: Float[Tensor, "B keys M"] | None = None,
        memory_mask: Bool[Tensor, "#B #H #T #keys"] | None = None,
        rotate_memory: Rotate = identity,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        x = self.attn(x, mask=mask, bias=bias, rotate=rotate, cache=cache)
        if self.cross is not None:
            rotate = identity if rotate_memory is identity else rotate  # rotate both queries and keys, or neither
            x = self.cross(x, memory, mask=memory_mask, rotate=rotate, rotate_memory=rotate_memory, cache=cache)
        return self.mlp(x)


class Encoder(nn.Module):
    """A stack of blocks and a final norm (https://arxiv.org/abs/2010.11929, equations 2 to 4).

    Sizes are numbers; variants of a part are factories, called with the sizes that they need. With `causal` and
    `memory_dim` it is a decoder. The drop path rate rises linearly from 0 in the first block to `drop_path` in
    the last.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        *,
        memory_dim: int | None = None,
        causal: bool = False,
        drop_path: float = 0.0,
        final_norm: bool = True,
        attention: Callable[[int, int, int | None, bool], AttentionBranch] = Attention,
        norm: Callable[[int], nn.Module] = LayerNorm,
        mlp: Callable[[int], nn.Module] = MLP,
        residual: Callable[[nn.Module, int, Norm, float], Residual] = PreNorm,
        position: Callable[[int, int], Position] = Position,
    ) -> None:
        super().__init__()
        if min(dim, depth, heads) < 1:
            raise ValueError(f"dim, depth and heads must be at least 1, got {dim=}, {depth=}, {heads=}")
        self.dim, self.depth, self.heads, self.memory_dim, self.causal = dim, depth, heads, memory_dim, causal

        def make_block(attn: nn.Module, drop: float) -> Block:
            cross = memory_dim and residual(attention(dim, heads, memory_dim, False), dim, norm, drop)
            return Block(residual(attn, dim, norm, drop), cross or None, residual(mlp(dim), dim, norm, drop))

        first = attention(dim, heads, None, causal)
        if not isinstance(first, AttentionBranch):
            raise ValueError(
                f"attention must make an AttentionBranch, which has a head_dim, got {type(first).__name__}"
            )
        self.blocks = nn.ModuleList([make_block(first, 0.0)])
        for layer in range(1, depth):
            self.blocks.append(make_block(attention(dim, heads, None, causal), drop_path * layer / (depth - 1)))
        self.norm = norm(dim) if final_norm else nn.Identity()
        self.position = position(heads, first.head_dim)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        positions: Real[Tensor, "#B T A"],
        *,
        mask: Bool[Tensor, "#B #H #T #S"] | None = None,
        memory: Float[Tensor, "B keys M"] | None = None,
        memory_positions: Real[Tensor, "#B keys A"] | None = None,
        memory_mask: Bool[Tensor, "#B #H #T #keys"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Encode tokens. With a cache, x holds only the new tokens, and `mask` covers all S tokens so far."""
        if (memory is None) != (self.memory_dim is None):
            raise ValueError(f"memory must be given exactly where memory_dim is, got memory_dim={self.memory_dim}")
        keys = positions if cache is None else cache.extend(positions)
        mask = mask if cache is None else masks.join(mask, cache.mask)
        bias, rotate = self.position.bias(positions, keys), self.position.rotation(positions)
        rotate_memory = identity if memory_positions is None else self.position.rotation(memory_positions)
        for index, block in enumerate(self.blocks):
            x = block(
                x,
                mask=mask,
                bias=bias,
                rotate=rotate,
                memory=memory,
                memory_mask=memory_mask,
                rotate_memory=rotate_memory,
                cache=None if cache is None else cache.get_layer(index),
            )
        return self.norm(x)
