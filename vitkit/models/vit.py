"""Vision Transformer (https://arxiv.org/abs/2010.11929).

B batch, C channels, H and W pixels, T = P + N tokens (P prefix, N patches), D width.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitkit.nn import First, Learned, PatchEmbed
from vitkit.nn import init as recipes
from vitkit.nn.encoder import Encoder


class ViT(nn.Module):
    """Patches -> encoder -> pool -> linear (section 3.1). The outputs are logits of classes or an embedding.

    Args:
        outputs: 0 for no head: the output is the pooled vector.
        pre_norm: a norm before the first block, as in CLIP.
        head: called with the width of the encoder and `outputs`.
    """

    inputs: ClassVar[tuple[str, ...]] = ("images",)

    def __init__(
        self,
        encoder: Encoder,
        image_size: tuple[int, int] = (224, 224),
        patch_size: tuple[int, int] = (16, 16),
        outputs: int = 1000,
        *,
        channels: int = 3,
        prefix: int = 1,
        table: Callable[[int, tuple[int, int]], nn.Module] = Learned,
        pre_norm: Callable[[int], nn.Module] = nn.Identity,
        pool: Callable[[int, int], nn.Module] = First,
        head: Callable[[int, int], nn.Module] = nn.Linear,
        init: Callable[[nn.Module], None] = recipes.vit,
    ) -> None:
        super().__init__()
        self.embed = PatchEmbed(encoder.dim, image_size, patch_size, channels=channels, prefix=prefix, table=table)
        self.pre_norm = pre_norm(encoder.dim)
        self.encoder = encoder
        self.pool = pool(encoder.dim, prefix)
        self.outputs = outputs or encoder.dim
        self.head = head(encoder.dim, outputs) if outputs else nn.Identity()
        init(self)

    @property
    def prefix(self) -> int:
        """The number of prefix tokens in front of the patches."""
        return len(self.embed.prefix)

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        """Return the number of patches, (down, across), of an image of (height, width) pixels."""
        height, width = size
        return self.embed.grid(height, width)

    def features(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        x, positions = self.embed(images)
        return self.encoder(self.pre_norm(x), positions)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B outputs"]:
        return self.head(self.pool(self.features(images)))
