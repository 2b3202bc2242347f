"""Geometry of a model's patches on the original photo, through resizing and cropping.

A photo is upright, its EXIF orientation applied. h w patches down and across; H W the photo's pixels.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitkit.data.preprocess import Preprocess
from vitkit.interpret.maps.layout import Layout

Number = int | float
Box = tuple[Number, Number, Number, Number]  # left, top, right, bottom


@dataclass(frozen=True)
class Frame:
    """The crop of a photo that a model sees, divided into its patches.

    Args: photo: (width, height) in pixels. box: the crop in the photo's pixels, whose corner is (0, 0) and whose first
    pixel ends at (1, 1). grid: (h, w).
    """

    photo: tuple[int, int]
    box: Box
    grid: tuple[int, int]

    @classmethod
    def from_preprocess(cls, preprocess: Preprocess, photo: tuple[int, int], layout: Layout) -> "Frame":
        """Return the frame of a photo. Raises: ValueError if the layout's patches do not fill the model's image."""
        covered = tuple(count * length for count, length in zip(layout.grid, layout.patch, strict=True))
        if covered != preprocess.size:
            raise ValueError(f"patches must fill the image of {preprocess.size} pixels (h, w), got them in {covered}")
        return cls(photo, find_visible_box(preprocess, photo), layout.grid)

    def get_patch_box(self, row: int, column: int) -> Box:
        """Return the box of a patch in the photo's pixels. Raises: ValueError for one outside the grid."""
        rows, columns = self.grid
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"patch must be inside the grid of {rows} x {columns}, got row {row}, column {column}")
        left, top, right, bottom = self.box
        across, down = (right - left) / columns, (bottom - top) / rows
        return left + column * across, top + row * down, left + (column + 1) * across, top + (row + 1) * down

    def find_patch(self, x: Number, y: Number) -> tuple[int, int] | None:
        """Return (row, column) of the patch at a point of the photo, None outside the crop."""
        left, top, right, bottom = self.box
        rows, columns = self.grid
        row = math.floor((y - top) / (bottom - top) * rows)
        column = math.floor((x - left) / (right - left) * columns)
        return (row, column) if 0 <= row < rows and 0 <= column < columns else None

    def upsample(self, map: Float[Tensor, "h w"]) -> Float[np.ndarray, "H W"]:
        """Upsample a map to the photo: a pixel gets the value of the patch at its middle, NaN outside the crop.

        Raises: ValueError for a map of another grid.
        """
        if tuple(map.shape) != self.grid:
            raise ValueError(f"map must be of the grid {self.grid}, got {tuple(map.shape)}")
        left, top, right, bottom = self.box
        width, height = self.photo
        rows, columns = (
            np.floor((np.arange(length) + 0.5 - start) / (end - start) * count).astype(int)
            for length, start, end, count in zip((height, width), (top, left), (bottom, right), self.grid, strict=True)
        )
        inside = [(indices >= 0) & (indices < count) for indices, count in zip((rows, columns), self.grid, strict=True)]
        pixels = np.full((height, width), np.nan, dtype=np.float32)
        pixels[np.ix_(*inside)] = map.detach().float().cpu().numpy()[np.ix_(rows[inside[0]], columns[inside[1]])]
        return pixels


def find_visible_box(preprocess: Preprocess, photo: tuple[int, int]) -> Box:
    """Return the crop of `Preprocess.resize` from a photo of (width, height), in the photo's pixels."""
    (width, height), (left, top, right, bottom) = preprocess.compute_resize(*photo)
    across, down = photo[0] / width, photo[1] / height
    return left * across, top * down, right * across, bottom * down
