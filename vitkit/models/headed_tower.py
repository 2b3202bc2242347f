"""An image model with another head. B batch, C channels, H and W pixels, T tokens, D width, E outputs."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitkit.models.mae import MAE
from vitkit.models.vit import ViT


class HeadedTower(nn.Module):
    """An image model whose head is replaced by another one.

    Args:
        head: from the pooled tokens to the outputs, (B, D) -> (B, E).
        outputs: E.
    """

    inputs: ClassVar[tuple[str, ...]] = ("images",)

    def __init__(self, tower: ViT | MAE, head: nn.Module, outputs: int) -> None:
        super().__init__()
        self.tower, self.head, self.outputs = tower, head, outputs

    @property
    def prefix(self) -> int:
        """The number of prefix tokens in front of the patches."""
        return self.tower.prefix

    @property
    def pool(self) -> nn.Module:
        """The pool of the tower. It is no submodule here, so that its parameters have only one name."""
        return self.tower.pool

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        """Return the number of patches, (down, across), of an image of (height, width) pixels."""
        return self.tower.grid(size)

    def features(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        return self.tower.features(images)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E"]:
        return self.head(self.pool(self.features(images)))
