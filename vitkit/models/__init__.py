"""Three parts and their glue each: embed, encode, read out."""

from vitkit.models.mae import MAE, Reconstruction, blockwise, uniform
from vitkit.models.sizes import SIZES, encoder
from vitkit.models.vit import ViT

__all__ = ["MAE", "SIZES", "Reconstruction", "ViT", "blockwise", "encoder", "uniform"]
