"""Masked autoencoder (https://arxiv.org/abs/2111.06377).

B batch, C channels, H and W pixels, h w the grid of N patches, n of them kept and M hidden, P prefix tokens, D width,
Q = p q C numbers in a patch of p x q pixels.
"""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64, Real
from torch import Tensor, nn

from vitkit.nn import Mean, PatchEmbed, Sinusoidal, list_cells
from vitkit.nn import init as recipes
from vitkit.nn.embed import gather_patches, split_patches
from vitkit.nn.encoder import Encoder

EPSILON = 1e-6  # added to the variance of a patch, in MAE's code


class Reconstruction(NamedTuple):
    """The predicted pixels of the hidden patches, and their indices, in raster order."""

    pixels: Float[Tensor, "B M Q"]
    hidden: Int64[Tensor, "B M"]


def draw_uniform(*size: int, device: torch.device) -> Tensor:
    """Return numbers from 0 to 1 in float32 in any precision: in 16 bits many would be equal."""
    return torch.rand(size, dtype=torch.float32, device=device)


def uniform(batch: int, grid: tuple[int, int], device: torch.device) -> Tensor:
    """Return noise (B, h, w) that makes all sets of visible patches equally likely (section 3, "Masking")."""
    return draw_uniform(batch, *grid, device=device)


def blockwise(batch: int, grid: tuple[int, int], device: torch.device) -> Tensor:
    """Return noise (B, h, w) that hides random rectangles, one after another, until enough patches are hidden.

    The rectangles are the blocks of BEiT (https://arxiv.org/abs/2106.08254, algorithm 1): 16 to 0.4 N patches, aspect
    ratios from 0.3 to 1 / 0.3.
    """
    blocks, (rows, columns) = 64, grid
    draws = draw_uniform(4, batch, blocks, 1, 1, device=device)
    largest = max(16.0, 0.4 * rows * columns)
    area = 16 + draws[0] * (largest - 16)
    aspect = 0.3 ** (1 - 2 * draws[1])
    height, width = (area * aspect).sqrt().clamp(1, rows).round(), (area / aspect).sqrt().clamp(1, columns).round()
    top, left = (draws[2] * (rows - height + 1)).floor(), (draws[3] * (columns - width + 1)).floor()
    row = torch.arange(rows, device=device)[:, None]
    column = torch.arange(columns, device=device)
    inside = (row >= top) & (row < top + height) & (column >= left) & (column < left + width)  # (B, blocks, h, w)
    order = torch.where(inside.any(1), inside.to(torch.uint8).argmax(1), blocks)  # the first block over each patch
    return blocks - order + draw_uniform(batch, *grid, device=device)


class MAE(nn.Module):
    """Masked autoencoder: the encoder sees some patches, the decoder predicts the pixels of the hidden ones.

    Hidden patches are never embedded. `features` hides none.

    Args:
        ratio: share of hidden patches; int(N * (1 - ratio)) are visible.
        norm_pix: predict each patch minus its mean, divided by its standard deviation.
        masking: draws noise (B, h, w) for a batch on a grid; the patches with the least noise are visible.
    """

    inputs: ClassVar[tuple[str, ...]] = ("images",)

    def __init__(
        self,
        encoder: Encoder,
        decoder: Encoder,
        image_size: tuple[int, int] = (224, 224),
        patch_size: tuple[int, int] = (16, 16),
        *,
        channels: int = 3,
        prefix: int = 1,
        ratio: float = 0.75,
        norm_pix: bool = True,
        table: Callable[[int, tuple[int, int]], nn.Module] = Sinusoidal,
        decoder_table: Callable[[int, tuple[int, int]], nn.Module] = Sinusoidal,
        masking: Callable[[int, tuple[int, int], torch.device], Tensor] = uniform,
        init: Callable[[nn.Module], None] = recipes.mae,
    ) -> None:
        super().__init__()
        self.ratio, self.norm_pix, self.masking = ratio, norm_pix, masking
        self.embed = PatchEmbed(encoder.dim, image_size, patch_size, channels=channels, prefix=prefix, table=table)
        self.encoder = encoder
        grid = self.embed.grid(*image_size)
        self.count_visible(grid)  # raises if the ratio leaves none or all
        values = channels * patch_size[0] * patch_size[1]
        self.decoder = Decoder(encoder.dim, decoder, decoder_table(decoder.dim, grid), values)
        init(self)
        nn.init.normal_(self.decoder.mask, std=0.02)  # as MAE's code

    @property
    def prefix(self) -> int:
        """The number of prefix tokens in front of the patches."""
        return len(self.embed.prefix)

    @property
    def outputs(self) -> int:
        """The width of the pooled vector, which is the encoder's."""
        return self.encoder.dim

    @property
    def pool(self) -> Mean:
        """The mean of the encoder's patch tokens. It is no submodule, since pretraining does not use it."""
        return Mean(self.encoder.dim, self.prefix)

    @property
    def head(self) -> nn.Identity:
        """The identity, which is no submodule either."""
        return nn.Identity()

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        """Return the number of patches, (down, across), of an image of (height, width) pixels."""
        height, width = size
        return self.embed.grid(height, width)

    def features(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        return self.encoder(*self.embed(images))

    def forward(self, images: Float[Tensor, "B C H W"], noise: Float[Tensor, "B h w"] | None = None) -> Reconstruction:
        """Predict the hidden patches. Args: noise: used instead of noise drawn by `masking`."""
        grid = self.embed.grid(images.shape[2], images.shape[3])
        noise = self.masking(len(images), grid, images.device) if noise is None else noise
        order = noise.flatten(1).argsort(dim=1)
        kept, hidden = (part.sort(dim=1).values for part in order.tensor_split([self.count_visible(grid)], dim=1))
        x = self.encoder(*self.embed.prepend(*self.embed.patchify(images, kept)))
        return Reconstruction(self.decoder(x, kept, hidden, list_cells(grid, images.device), grid), hidden)

    def count_visible(self, grid: tuple[int, int]) -> int:
        """Return the number of visible patches. Raises: ValueError if none or all are visible."""
        count = grid[0] * grid[1]
        if not 0 < (visible := int(count * (1 - self.ratio))) < count:
            raise ValueError(f"ratio must leave some of {count} patches visible and hide some, got ratio={self.ratio}")
        return visible

    def make_target(self, images: Float[Tensor, "B C H W"], hidden: Int64[Tensor, "B M"]) -> Float[Tensor, "B M Q"]:
        """Return the pixels that the decoder should predict for these patches, normalised if `norm_pix`."""
        pixels = gather_patches(split_patches(images, self.embed.patch_size), hidden)
        pixels = pixels.movedim(2, -1).flatten(2).to(torch.promote_types(images.dtype, torch.float32))  # (p, q, C)
        return (pixels - pixels.mean(-1, True)) / compute_deviation(pixels) if self.norm_pix else pixels

    def fill_hidden(self, images: Float[Tensor, "B C H W"], output: Reconstruction) -> Float[Tensor, "B C H W"]:
        """Return the images with predicted pixels in the hidden patches, which do not depend on the real ones there.

        With `norm_pix` the model predicts neither the mean nor the standard deviation of a patch: both are interpolated
        from the visible patches. Those of the real patches show much of an image without any model. MAE's code draws no
        model with `norm_pix` (demo/mae_visualize.ipynb loads one "trained with pixels as targets for visualization").
        """
        pixels = output.pixels.to(images.dtype)
        if self.norm_pix:
            patches = split_patches(images, self.embed.patch_size).flatten(2)
            statistics = torch.cat([patches.mean(-1, True), compute_deviation(patches)], dim=2)
            mean, deviation = interpolate_patches(statistics, output.hidden, self.grid(images.shape[2:])).split(1, 2)
            pixels = pixels * deviation + mean
        return paste_patches(images, output.hidden, pixels, self.embed.patch_size)

    def fill_means(self, images: Float[Tensor, "B C H W"], hidden: Int64[Tensor, "B M"]) -> Float[Tensor, "B C H W"]:
        """Return the images with the interpolated mean colour in each hidden patch: what is known without a model."""
        means = split_patches(images, self.embed.patch_size).mean((3, 4))  # (B, N, C)
        colours = interpolate_patches(means, hidden, self.grid(images.shape[2:]))
        return paste_patches(
            images, hidden, colours.repeat(1, 1, math.prod(self.embed.patch_size)), self.embed.patch_size
        )


class Decoder(nn.Module):
    """Visible tokens, and mask tokens for the hidden patches -> encoder -> pixels of the hidden patches."""

    def __init__(self, dim: int, encoder: Encoder, table: nn.Module, outputs: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, encoder.dim)
        self.mask = nn.Parameter(torch.zeros(encoder.dim))
        self.table = table
        self.encoder = encoder
        self.pixels = nn.Linear(encoder.dim, outputs)

    def forward(
        self,
        x: Float[Tensor, "B seen D"],
        kept: Int64[Tensor, "B n"],
        hidden: Int64[Tensor, "B M"],
        positions: Float[Tensor, "1 N 2"],
        grid: tuple[int, int],
    ) -> Float[Tensor, "B M Q"]:
        x = self.embed(x).to(self.mask.dtype)  # tokens stay float32 under autocast
        prefix = x.shape[1] - kept.shape[1]
        patches = self.mask.expand(len(x), positions.shape[1], -1)
        patches = patches.scatter(1, kept[:, :, None].expand(-1, -1, x.shape[2]), x[:, prefix:])
        x = torch.cat([x[:, :prefix], patches + self.table(positions, grid).to(x.dtype)], dim=1)
        positions = torch.cat([positions.new_zeros(1, prefix, 2), positions], dim=1)
        return self.pixels(gather_patches(self.encoder(x, positions)[:, prefix:], hidden))


def paste_patches(
    images: Real[Tensor, "B C H W"], index: Int64[Tensor, "B n"], pixels: Real[Tensor, "B n Q"], size: tuple[int, int]
) -> Real[Tensor, "B C H W"]:
    """Return the images with the patches at these indices replaced by `pixels`, in the order (p, q, C)."""
    patches = split_patches(images, size).movedim(2, -1)  # (B, N, p, q, C)
    updated = patches.flatten(2).scatter(1, index[:, :, None].expand(pixels.shape), pixels).view(patches.shape)
    rows = updated.unflatten(1, (images.shape[2] // size[0], -1))  # (B, h, w, p, q, C)
    return rows.permute(0, 5, 1, 3, 2, 4).reshape(images.shape)


def interpolate_patches(
    values: Float[Tensor, "B N V"], hidden: Int64[Tensor, "B M"], grid: tuple[int, int]
) -> Float[Tensor, "B M V"]:
    """Return the mean of the visible patches' values for each hidden patch, with weights of 1 / distance^2.

    This is Shepard's interpolation (https://doi.org/10.1145/800186.810616). Values of hidden patches have no weight.
    """
    cells = list_cells(grid, values.device)[0].to(values.dtype)
    distances = (cells[:, None] - cells).square().sum(2)  # (N, N)
    weights = gather_patches(1 / distances.expand(len(values), -1, -1), hidden)
    weights = weights.scatter(2, hidden[:, None].expand(-1, hidden.shape[1], -1), 0.0)
    return weights / weights.sum(2, True) @ values


def compute_deviation(pixels: Float[Tensor, "*B Q"]) -> Float[Tensor, "*B 1"]:
    """Return the standard deviation of each patch, from its unbiased variance as in MAE's code."""
    variance = (pixels - pixels.mean(-1, True)).square().sum(-1, True) / (pixels.shape[-1] - 1)
    return (variance + EPSILON).sqrt()
