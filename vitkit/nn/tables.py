"""Position embeddings, added to the tokens once. See positions.py for schemes within attention.

B batch, N tokens, D width, A position axes. A table returns the embeddings (b, N, D) of positions (b, N, A)
on a grid of A sides, with b = B or 1.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Real
from torch import Tensor, nn

Resample = Callable[[Tensor, tuple[int, int]], Tensor]  # plain types, which the parser of configs can compare


def bicubic(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resample a table (1, D, h, w) to another grid (h, w), without antialiasing."""
    return F.interpolate(table, grid, mode="bicubic", align_corners=False)


def bicubic_antialias(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resample as timm does: with antialiasing where the grid shrinks, and a = -0.5 in the kernel, not -0.75."""
    return F.interpolate(table, grid, mode="bicubic", align_corners=False, antialias=True)


class Learned(nn.Module):
    """A learned vector for each cell of a grid. For images, `resample` adapts the table to grids of other sizes."""

    def __init__(self, dim: int, grid: tuple[int, ...], *, resample: Resample = bicubic_antialias) -> None:
        super().__init__()
        self.grid, self.resample = grid, resample
        self.weight = nn.Parameter(torch.zeros(*grid, dim))

    def forward(self, positions: Real[Tensor, "b N A"], grid: tuple[int, ...]) -> Float[Tensor, "b N D"]:
        index = torch.zeros_like(positions[..., 0], dtype=torch.long)
        for axis, side in enumerate(grid):
            index = index * side + positions[..., axis].long()
        return self.resize_table(grid).flatten(0, -2)[index]

    def resize_table(self, grid: tuple[int, ...]) -> Float[Tensor, "*grid D"]:
        """Return the table, resampled to this grid. Raises: ValueError for another grid, unless both are of images."""
        if grid == self.grid:
            return self.weight
        if len(grid) != 2 or len(self.grid) != 2:
            raise ValueError(f"grid must be {self.grid} or, for images, another (h, w), got grid={grid}")
        table = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))  # resample in float32 at least
        return self.resample(table.permute(2, 0, 1)[None], grid)[0].permute(1, 2, 0).to(self.weight.dtype)


class NoPositions(nn.Module):
    """Zero embeddings, for models that use positions in attention only, or not at all."""

    def __init__(self, dim: int, grid: tuple[int, ...]) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, positions: Real[Tensor, "b N A"], grid: tuple[int, ...]) -> Float[Tensor, "b N D"]:
        return torch.zeros((), device=positions.device).expand(*positions.shape[:2], self.dim)


class Sinusoidal(nn.Module):
    """Fixed sines and cosines: for each axis, last axis first, [sin(p w_k), cos(p w_k)], w_k = base^(-k / (D / 2A)).

    One axis: https://arxiv.org/abs/1706.03762, section 3.5, sines before cosines. Two: MAE's table (column first).
    """

    def __init__(self, dim: int, grid: tuple[int, ...], *, base: float = 10_000.0) -> None:
        super().__init__()
        if dim % (2 * len(grid)):
            raise ValueError(f"dim must be a multiple of 2 * axes, got dim={dim} for {len(grid)} axes")
        self.dim, self.base = dim, base

    def forward(self, positions: Real[Tensor, "b N A"], grid: tuple[int, ...]) -> Float[Tensor, "b N D"]:
        positions = positions.to(torch.promote_types(positions.dtype, torch.float32))
        pairs = self.dim // (2 * positions.shape[-1])
        frequencies = self.base ** -(torch.arange(pairs, device=positions.device, dtype=positions.dtype) / pairs)
        angles = positions.flip(-1)[..., None] * frequencies  # (b, N, A, pairs)
        return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)
