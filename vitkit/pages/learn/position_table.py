"""A table of learned positions, as the page holds it.

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
MOST = 200_000  # numbers that the page holds, in 2 bytes each: 0.5 MB


class Table(NamedTuple):
    """16 bits for each number, little-endian, in base64, times `scale`; of a large table each `stride`-th row and
    column."""

    grid: tuple[int, int]
    dim: int
    stride: int
    scale: float
    packed: str


def pack_table(table: Float[Tensor, "h w D"]) -> Table:
    stride = 1
    while (kept := table[::stride, ::stride]).numel() > MOST and stride < max(table.shape[:2]):
        stride += 1
    rows, columns, dim = kept.shape
    scale = max(kept.abs().max().item(), 1e-12) / 32767
    numbers = (kept / scale).round().to(torch.int16).numpy().astype(np.dtype("<i2"))
    return Table((rows, columns), dim, stride, scale, base64.b64encode(numbers.tobytes()).decode())


def built_in() -> Float[Tensor, "h w D"]:
    """What a small ViT learned of digits; the file says how."""
    held: dict[str, Any] = json.loads(read_asset("learned.json", PACKAGE))
    return torch.tensor(held["table"]).unflatten(0, held["grid"])
