"""Protocols of models, so that commands do not depend on the families of models.

B batch, C channels, H and W pixels, T tokens (P prefix tokens, then h w patches), D width, E outputs.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Model(Protocol):
    """A model declares the inputs of its `forward`, in order: "images", "texts"."""

    inputs: ClassVar[tuple[str, ...]]


@runtime_checkable
class ImageModel(Protocol):
    """An image model: head(pool(features(images))), (B, E), are the logits of classes or an embedding of the image.

    An image of (height, width) pixels becomes `prefix` tokens, then a grid of patches in raster order.
    """

    inputs: ClassVar[tuple[str, ...]]

    @property
    def prefix(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    @property
    def pool(self) -> Callable[[Float[Tensor, "B T D"]], Float[Tensor, "B D"]]: ...

    @property
    def head(self) -> Callable[[Float[Tensor, "B D"]], Float[Tensor, "B E"]]: ...

    def grid(self, size: Sequence[int]) -> tuple[int, int]: ...

    def features(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]: ...
