"""Attention in shifted windows, mapped back to the image (Swin, https://arxiv.org/abs/2103.14030, section 3.2).

B batch, W windows in raster order, H heads, h w the grid of a stage, a b the sides of a window.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.see.layers import get_class_path

BLOCKS = {
    "timm.models.swin_transformer.SwinTransformerBlock",
    "timm.models.swin_transformer_v2.SwinTransformerV2Block",
}


@dataclass(frozen=True)
class Windows:
    """Windows of a layer: the grid (h, w) is rolled up and left by `shift`, padded, and cut into windows."""

    grid: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int]

    @property
    def count(self) -> tuple[int, int]:
        """Number of windows down and across."""
        return -(-self.grid[0] // self.window[0]), -(-self.grid[1] // self.window[1])

    def map_to_grid(self, weights: Float[Tensor, "BW H ab ab"], row: int, column: int) -> Float[Tensor, "B H h w"]:
        """Map the attention of the cell (row, column) back to the grid, 0 outside its window; padding is dropped.

        Raises: ValueError for a cell outside the grid, and for weights of other windows.
        """
        (h, w), (a, b), (down, across) = self.grid, self.window, self.count
        if not (0 <= row < h and 0 <= column < w):
            raise ValueError(f"cell must be inside the grid of {h} x {w}, got row {row}, column {column}")
        if weights.shape[2:] != (a * b, a * b) or len(weights) % (down * across):
            raise ValueError(
                f"weights must be of {down * across} windows of {a} x {b} for each image, got {tuple(weights.shape)}"
            )
        (top, y), (left, x) = divmod((row - self.shift[0]) % h, a), divmod((column - self.shift[1]) % w, b)
        window = weights.unflatten(0, (-1, down, across))[:, top, left, :, y * b + x].unflatten(-1, (a, b))
        around = (left * b, (across - 1 - left) * b, top * a, (down - 1 - top) * a)
        return F.pad(window, around)[..., :h, :w].roll(self.shift, dims=(-2, -1))


def find_windows(model: nn.Module, layer: str) -> Windows:
    """Return the windows of the attention layer named `layer`.

    Raises: ValueError for a layer whose windows are unknown, or depend on the image.
    """
    block: Any = model.get_submodule(layer.rpartition(".")[0])
    if get_class_path(block) not in BLOCKS:
        raise ValueError(f"the windows of {layer} ({get_class_path(block)}) are unknown")
    if block.dynamic_mask:
        raise ValueError(f"the windows of {layer} depend on the image: the model must have strict_img_size=True")
    return Windows(tuple(block.input_resolution), tuple(block.window_size), tuple(block.shift_size))
