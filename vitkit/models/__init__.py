"""Three parts and their glue each: embed, encode, read out."""

from vitkit.models.sizes import SIZES, encoder
from vitkit.models.vit import ViT

__all__ = ["SIZES", "ViT", "encoder"]
