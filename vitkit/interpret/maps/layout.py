"""Layout of a model's tokens: prefix tokens and a grid of patches.

P prefix tokens, N = h w patches, T = P + N tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.maps.foreign_tokens import find_foreign_tokens, name_registers
from vitkit.models.parts import find_image_tower


class Split(NamedTuple):
    """Values of the prefix tokens, and of the patches on their grid."""

    prefix: Float[Tensor, "*B P"]
    patches: Float[Tensor, "*B h w"]


@dataclass(frozen=True)
class Layout:
    """Prefix tokens by name, in front, then the patches of a grid in raster order.

    `grid` is (h, w) in patches, `patch` (height, width) in pixels of the model's image.
    """

    prefix: tuple[str, ...]
    grid: tuple[int, int]
    patch: tuple[int, int]

    @property
    def num_tokens(self) -> int:
        return len(self.prefix) + self.grid[0] * self.grid[1]

    def find_token(self, token: str | tuple[int, int]) -> int:
        """Return the index of a prefix token by name, or of the patch at (row, column). Raises: ValueError."""
        rows, columns = self.grid
        if isinstance(token, str):
            if token not in self.prefix:
                raise ValueError(f"token must be one of {', '.join(self.prefix) or 'no prefix'}, got {token}")
            return self.prefix.index(token)
        row, column = token
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"patch must be inside the grid of {rows} x {columns}, got row {row}, column {column}")
        return len(self.prefix) + row * columns + column

    def name_token(self, index: int) -> str:
        """Return the name of a prefix token, or "row R, column C"."""
        if index < len(self.prefix):
            return self.prefix[index]
        row, column = divmod(index - len(self.prefix), self.grid[1])
        return f"row {row}, column {column}"

    def split(self, weights: Float[Tensor, "*B T"]) -> Split:
        """Split the last axis into prefix tokens and grid. Raises: ValueError for another number of tokens."""
        if weights.shape[-1] != self.num_tokens:
            raise ValueError(
                f"weights must be of {len(self.prefix)} + {self.grid[0]} x {self.grid[1]} tokens, "
                f"got {weights.shape[-1]}"
            )
        count = len(self.prefix)
        return Split(weights[..., :count], weights[..., count:].unflatten(-1, self.grid))


def layout_of(model: nn.Module, size: Sequence[int]) -> Layout:
    """Return the layout of an image of (height, width) pixels. Raises: ValueError for a model with unknown tokens."""
    if (tower := find_image_tower(model)) is None:
        return Layout(*find_foreign_tokens(model, (size[0], size[1])))
    prefix = ("cls", *name_registers(tower.prefix - 1))[: tower.prefix]
    return Layout(prefix, tower.grid(size), tower.embed.patch_size)
