"""Layers of a Transformer: plain PyTorch, independent of modality, loss and files."""

from vitkit.nn import init, masks
from vitkit.nn.attention import Attention
from vitkit.nn.cache import Cache
from vitkit.nn.cores import ExplicitCore, FusedCore, LinearCore, MeasuredCore, WindowCore
from vitkit.nn.embed import PatchEmbed, TokenEmbed, list_cells
from vitkit.nn.encoder import Block, Encoder
from vitkit.nn.mlp import MLP, QuickGELU, SwiGLU
from vitkit.nn.pool import Attend, EndOfText, First, Last, Mean
from vitkit.nn.positions import ALiBi, Position, RelativeBias, Rotary
from vitkit.nn.residual import LayerNorm, Message, PostNorm, PreNorm
from vitkit.nn.tables import Learned, NoPositions, Sinusoidal, bicubic, bicubic_antialias

__all__ = [
    "ALiBi", "Attend", "Attention", "Block", "Cache", "Encoder", "EndOfText", "ExplicitCore", "First", "FusedCore",
    "Last", "LayerNorm", "Learned", "LinearCore", "MLP", "Mean", "MeasuredCore", "Message", "NoPositions", "PatchEmbed",
    "Position", "PostNorm", "PreNorm", "QuickGELU", "RelativeBias", "Rotary", "Sinusoidal", "SwiGLU", "TokenEmbed",
    "WindowCore", "bicubic", "bicubic_antialias", "list_cells", "init", "masks",
]  # fmt: skip
