"""Embeddings of images and texts: from pixels or ids to tokens and their positions.

B batch, C channels, N patches, P prefix tokens, T = P + N tokens, D width.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int64, Real, Shaped
from torch import Tensor, nn

from vitkit.nn.tables import Learned


class PatchEmbed(nn.Module):
    """Patch embedding: project each patch, add its position embedding, put prefix tokens in front.

    https://arxiv.org/abs/2010.11929, equation 1. The projection is a convolution whose stride is its kernel size;
    `table` makes the position embeddings. The first of the `prefix` learned tokens is CLS, further ones are registers
    (https://arxiv.org/abs/2309.16588). They have no position embedding, which a learned token can absorb.
    Images may have any size that is a multiple of the patch size.
    """

    def __init__(
        self,
        dim: int,
        image_size: tuple[int, int],
        patch_size: tuple[int, int],
        *,
        channels: int = 3,
        prefix: int = 1,
        table: Callable[[int, tuple[int, int]], nn.Module] = Learned,
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.patches = nn.Conv2d(channels, dim, patch_size, patch_size)
        self.table = table(dim, self.grid(*image_size))
        self.prefix = nn.Parameter(torch.zeros(prefix, dim))

    def forward(self, images: Float[Tensor, "B C H W"]) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "1 T 2"]]:
        return self.prepend(*self.patchify(images))

    def patchify(
        self, images: Float[Tensor, "B C H W"], kept: Int64[Tensor, "B n"] | None = None
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "b n 2"]]:
        """Embed the patches, in raster order, and return their (row, column) too.

        Args: kept: indices of the patches of each image to embed; the others are not projected.

        Raises: ValueError for one image without a batch axis, and for a size that is no multiple of the patch size.
        """
        if images.ndim != 4:
            raise ValueError(f"images must be a batch, B C H W, got {tuple(images.shape)}; a single one is image[None]")
        grid = self.grid(images.shape[2], images.shape[3])
        if kept is None:
            x = self.patches(images).flatten(2).mT
        else:  # the convolution of a single patch is a matrix product
            pixels = gather_patches(split_patches(images, self.patch_size), kept).flatten(2)
            x = F.linear(pixels, self.patches.weight.flatten(1), self.patches.bias)
        positions = list_cells(grid, x.device)
        table = self.table(positions, grid).to(self.prefix.dtype)  # tokens stay float32 under autocast
        return (x + table, positions) if kept is None else (x + table[0, kept], positions[0, kept])

    def prepend(
        self, x: Float[Tensor, "B N D"], positions: Float[Tensor, "b N 2"]
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "b T 2"]]:
        """Put the prefix tokens, at the origin, in front of any patches."""
        x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], dim=1)
        origin = positions.new_zeros(positions.shape[0], len(self.prefix), 2)
        return x, torch.cat([origin, positions], dim=1)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of patches of an image, (down, across).

        Raises: ValueError for a size that is no multiple of the patch size.
        """
        rows, columns = self.patch_size
        if height % rows or width % columns or not height or not width:
            multiple = max(height // rows, 1) * rows, max(width // columns, 1) * columns
            raise ValueError(
                f"image_size must be a multiple of patch_size, got image_size={height, width}, "
                f"patch_size={self.patch_size}; resize to {multiple}"
            )
        return height // rows, width // columns


class TokenEmbed(nn.Module):
    """Token embedding: a learned vector for each id of the vocabulary, plus its position embedding from `table`.

    Texts have at most `context` ids. `scale` multiplies the vectors before the position embeddings are added: sqrt(D)
    in https://arxiv.org/abs/1706.03762, section 3.4.
    """

    def __init__(
        self,
        dim: int,
        vocabulary: int,
        context: int,
        *,
        table: Callable[[int, tuple[int]], nn.Module] = Learned,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.context, self.scale = context, scale
        self.tokens = nn.Embedding(vocabulary, dim)
        self.table = table(dim, (context,))

    def forward(
        self, ids: Int[Tensor, "B T"], positions: Int[Tensor, "#B T 1"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Int[Tensor, "#B T 1"]]:
        """Embed texts and return the positions of their ids too.

        Args: positions: 0, 1, 2, ... by default; others for texts that are padded on the left, packed or continued.

        Raises: ValueError for a text longer than the context, and for positions outside of it.
        """
        if ids.shape[1] > self.context:
            raise ValueError(f"ids must be at most context={self.context} long, got {ids.shape[1]}; cut the text")
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None, :, None]
        elif not torch.compiler.is_compiling() and ((positions < 0) | (positions >= self.context)).any():
            least, most = positions.aminmax()
            raise ValueError(f"positions must be in [0, context={self.context}), got {least} to {most}")
        x = self.tokens(ids) * self.scale
        return x + self.table(positions, (self.context,)).to(x.dtype), positions


def split_patches(images: Real[Tensor, "B C H W"], size: tuple[int, int]) -> Real[Tensor, "B N C p q"]:
    """Return the pixels of each patch, in raster order, as a view of the images."""
    rows = images.unflatten(3, (-1, size[1])).unflatten(2, (-1, size[0]))  # (B, C, h, p, w, q)
    return rows.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def gather_patches(x: Shaped[Tensor, "B N *rest"], index: Int64[Tensor, "B n"]) -> Shaped[Tensor, "B n *rest"]:
    """Return the patches (or their tokens) of each sample at its indices."""
    return x[torch.arange(len(x), device=x.device)[:, None], index]


def list_cells(grid: tuple[int, int], device: torch.device) -> Float[Tensor, "1 N 2"]:
    """Return the (row, column) of each cell of the grid, in raster order."""
    return torch.cartesian_prod(*(torch.arange(side, device=device) for side in grid))[None].float()
