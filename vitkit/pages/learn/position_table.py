"""A table of learned positions in the form that the page holds.

h w positions down and across, D width.
"""

import base64
import json
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.support.texts import read_asset

PACKAGE = "vitkit.pages.learn"
MAX_NUMBERS = 200_000  # of the page, in 2 bytes each: 0.5 MB


class PackedTable(NamedTuple):
    """Integers of 16 bits, little-endian, in base64, to be multiplied by `scale`; every `stride`-th row and column."""

    grid: tuple[int, int]
    dim: int
    stride: int
    scale: float
    packed: str


def pack_table(table: Float[Tensor, "h w D"]) -> PackedTable:
    """Quantize the table; a table of more than MAX_NUMBERS is thinned."""
    stride = 1
    while (kept := table[::stride, ::stride]).numel() > MAX_NUMBERS and stride < max(table.shape[:2]):
        stride += 1
    rows, columns, dim = kept.shape
    scale = max(kept.abs().max().item(), 1e-12) / 32767
    numbers = (kept / scale).round().to(torch.int16).numpy().astype(np.dtype("<i2"))
    return PackedTable((rows, columns), dim, stride, scale, base64.b64encode(numbers.tobytes()).decode())


def load_digit_table() -> Float[Tensor, "h w D"]:
    """Load the positions that a small ViT learned on digits; learned.json says how."""
    content: dict[str, Any] = json.loads(read_asset("learned.json", PACKAGE))
    return torch.tensor(content["table"]).unflatten(0, content["grid"])
