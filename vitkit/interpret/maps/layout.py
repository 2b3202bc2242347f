"""Where the tokens of a model stand in its image.

P prefix tokens, N = h w patches, T = P + N tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.maps.foreign_tokens import of_foreign, registers
from vitkit.models.parts import find_image_tower


class Split(NamedTuple):
    """What goes to each prefix token, and to each patch where it stands."""

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
    def tokens(self) -> int:
        return len(self.prefix) + self.grid[0] * self.grid[1]

    def token(self, where: str | tuple[int, int]) -> int:
        """The place of a prefix token by its name, or of the patch at (row, column). Raises: ValueError."""
        rows, columns = self.grid
        if isinstance(where, str):
            if where not in self.prefix:
                raise ValueError(f"token must be one of {', '.join(self.prefix) or 'no prefix'}, got {where}")
            return self.prefix.index(where)
        row, column = where
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"patch must be inside the grid of {rows} x {columns}, got row {row}, column {column}")
        return len(self.prefix) + row * columns + column

    def name(self, token: int) -> str:
        if token < len(self.prefix):
            return self.prefix[token]
        row, column = divmod(token - len(self.prefix), self.grid[1])
        return f"row {row}, column {column}"

    def split(self, weights: Float[Tensor, "*B T"]) -> Split:
        """Raises: ValueError for another number of tokens: it is not guessed what they are."""
        if weights.shape[-1] != self.tokens:
            raise ValueError(
                f"weights must be of {len(self.prefix)} + {self.grid[0]} x {self.grid[1]} tokens, "
                f"got {weights.shape[-1]}"
            )
        count = len(self.prefix)
        return Split(weights[..., :count], weights[..., count:].unflatten(-1, self.grid))


def layout_of(model: nn.Module, size: Sequence[int]) -> Layout:
    """Of an image of (height, width) pixels. Raises: ValueError for a model whose tokens are not known."""
    if (tower := find_image_tower(model)) is None:
        return Layout(*of_foreign(model, (size[0], size[1])))
    prefix = ("cls", *registers(tower.prefix - 1))[: tower.prefix]
    return Layout(prefix, tower.grid(size), tower.embed.patch_size)
