"""Residual connections: x plus a branch, with a norm, layer scale and drop path.

B batch, T tokens, D width. Layer scale: https://arxiv.org/abs/2103.17239; drop path: https://arxiv.org/abs/1603.09382
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


class LayerNorm(nn.LayerNorm):
    """LayerNorm with the epsilon of Vision Transformers: 1e-6 (JAX, timm), where PyTorch has 1e-5."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps)


class Branch(nn.Module, ABC):
    """Abstract: a module whose output a residual adds to x. Its property `last` lets init.py scale the last matrix."""

    @property
    @abstractmethod
    def last(self) -> nn.Linear:
        """The matrix whose product is added to x."""


class Residual(nn.Module):
    """Abstract: x plus a branch f(x).

    Args:
        drop: the drop path rate: the probability that a sample skips the branch in training.
        scale: the initial value of the layer scale; None for no layer scale.
    """

    def __init__(
        self, f: nn.Module, dim: int, norm: Norm, drop: float = 0.0, *, scale: float | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= drop < 1:
            raise ValueError(f"drop must be at least 0 and below 1, got drop={drop}")
        self.f, self.norm, self.drop = f, norm(dim), drop
        self.scale = None if scale is None else nn.Parameter(torch.full((dim,), scale))
        self.dropout = nn.Dropout(dropout)

    @property
    def output(self) -> nn.Module:
        """The module whose output is added to x."""
        return self.f

    def run_branch(self, x: Tensor, *args: Tensor | None, **kwargs: object) -> Tensor:
        """Return f(x), (B, T, D), after dropout, layer scale and drop path. Other arguments are passed on to f."""
        y = self.dropout(self.f(x, *args, **kwargs))
        return self.drop_path(y if self.scale is None else y * self.scale)

    def drop_path(self, y: Tensor) -> Tensor:
        """Zero y, (B, T, D), for samples that skip the branch in training, and scale up the others."""
        if self.training and self.drop:
            mask = y.new_empty(y.shape[0], 1, 1, dtype=torch.float32).bernoulli_(1 - self.drop)
            y = y * mask.to(y.dtype) / (1 - self.drop)
        return y


class PreNorm(Residual):
    """x + f(norm(x))"""

    def forward(self, x: Tensor, *args: Tensor | None, **kwargs: object) -> Tensor:
        return x + self.run_branch(self.norm(x), *args, **kwargs)


class PostNorm(Residual):
    """norm(x + f(x))"""

    def forward(self, x: Tensor, *args: Tensor | None, **kwargs: object) -> Tensor:
        return self.norm(x + self.run_branch(x, *args, **kwargs))


class Message(Residual):
    """x + fuse([x, norm(f(x))]), SuperGlue's residual (https://arxiv.org/abs/1911.11763, equation 3).

    Args: fuse: called with D for a module from (B, T, 2 D) to (B, T, D).
    """

    def __init__(
        self, f: nn.Module, dim: int, norm: Norm, drop: float = 0.0, *, fuse: Callable[[int], nn.Module]
    ) -> None:
        super().__init__(f, dim, norm, drop)
        self.fuse = fuse(dim)

    @property
    def output(self) -> nn.Module:
        return self.fuse

    def forward(self, x: Tensor, *args: Tensor | None, **kwargs: object) -> Tensor:
        message = self.norm(self.f(x, *args, **kwargs))
        return x + self.drop_path(self.fuse(torch.cat([x, message], dim=-1)))
