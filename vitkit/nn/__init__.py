"""The trunk's parts: plain PyTorch that knows no modality, no loss and no file."""

from vitkit.nn import init, masks
from vitkit.nn.attention import Attention, ExplicitCore, FusedCore, MeasuredCore
from vitkit.nn.cache import Cache
from vitkit.nn.embed import PatchEmbed, cells
from vitkit.nn.encoder import Block, Encoder
from vitkit.nn.mlp import MLP, QuickGELU, SwiGLU
from vitkit.nn.pool import Attend, First, Mean
from vitkit.nn.positions import ALiBi, Position, RelativeBias, Rotary
from vitkit.nn.residual import LayerNorm, PostNorm, PreNorm
from vitkit.nn.tables import Learned, Sinusoidal, bicubic, bicubic_antialias

__all__ = [
    "MLP", "ALiBi", "Attend", "Attention", "Block", "Cache", "Encoder", "ExplicitCore", "First", "FusedCore",
    "LayerNorm", "Learned", "Mean", "MeasuredCore", "PatchEmbed", "Position", "PostNorm", "PreNorm", "QuickGELU",
    "RelativeBias", "Rotary", "Sinusoidal", "SwiGLU", "bicubic", "bicubic_antialias", "cells",
    "init", "masks",
]  # fmt: skip
