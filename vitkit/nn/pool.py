"""Pooling: from a sequence to one vector. B batch, T tokens, the first `prefix` of them CLS and registers, D width."""

from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitkit.nn.attention import Attention
from vitkit.nn.mlp import MLP
from vitkit.nn.residual import LayerNorm, Norm, PreNorm


class First(nn.Module):
    """The CLS token, which is the first."""

    def __init__(self, dim: int, prefix: int) -> None:
        super().__init__()
        if not prefix:
            raise ValueError("prefix must be at least 1 for First, got prefix=0; pool by Mean or Attend instead")

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        return x[:, 0]


class Mean(nn.Module):
    """norm(mean of the patch tokens). With a norm here the encoder should have `final_norm=False`."""

    def __init__(self, dim: int, prefix: int, *, norm: Callable[[int], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.prefix, self.norm = prefix, norm(dim)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        return self.norm(x[:, self.prefix :].mean(dim=1))


class Attend(nn.Module):
    """Attention pooling: a learned query attends to the sequence, then an MLP.

    https://arxiv.org/abs/2106.04560, section 3.3.
    """

    def __init__(
        self, dim: int, prefix: int, *, heads: int, norm: Norm = LayerNorm, mlp: Callable[[int], nn.Module] = MLP
    ) -> None:
        super().__init__()
        self.query, self.attn = nn.Parameter(torch.zeros(1, dim)), Attention(dim, heads, memory_dim=dim)
        self.mlp = PreNorm(mlp(dim), dim, norm)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        return self.mlp(self.attn(self.query.to(x.dtype).expand(x.shape[0], -1, -1), x))[:, 0]


class TextPool(nn.Module):
    """Abstract: pool the tokens of texts, given their ids. If `whole`, every text must be padded to the context."""

    whole: ClassVar[bool] = False


class EndOfText(TextPool):
    """The token at the first end-of-text id. In a causal encoder it attends to the whole text but not to padding.

    Args: end: the id, by default that of CLIP's vocabulary.

    Raises: ValueError for a text without this id.
    """

    def __init__(self, *, end: int = 49407) -> None:
        super().__init__()
        self.end = end

    def forward(self, x: Float[Tensor, "B T D"], ids: Int[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        ends = ids == self.end
        if not torch.compiler.is_compiling() and not ends.any(1).all():
            rows = (~ends.any(1)).nonzero()[:, 0].tolist()
            raise ValueError(f"every text must hold the id end={self.end}, got none in rows {rows[:10]}")
        return x[torch.arange(x.shape[0], device=x.device), ends.int().argmax(1)]


class Last(TextPool):
    """The last token, even if it is padding (SigLIP). Texts must be padded to the same length as in training."""

    whole = True

    def forward(self, x: Float[Tensor, "B T D"], ids: Int[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        return x[:, -1]
