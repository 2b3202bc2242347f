"""Models: each embeds its inputs, encodes the tokens and computes outputs from them."""

from vitkit.models.clip import CLIP, Pair
from vitkit.models.mae import MAE, Reconstruction, blockwise, uniform
from vitkit.models.sizes import SIZES, encoder
from vitkit.models.text import Prompt, TextDecoder, TextTower
from vitkit.models.vit import ViT

__all__ = [
    "CLIP", "MAE", "SIZES", "Pair", "Prompt", "Reconstruction", "TextDecoder", "TextTower", "ViT", "blockwise",
    "encoder", "uniform",
]  # fmt: skip
