"""Attention weights in a byte each, small enough for a page that holds all layers.

H heads, T tokens, P prefix tokens.
"""

import base64
import zlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

STEPS = 254  # 255 marks the row's largest weight
TINY = 1e-30


class PackedAttention(NamedTuple):
    """One layer. `content` is Base64 of a zlib stream, `error` the largest difference from the weights."""

    heads: int
    content: str
    error: float


class QuantizedRows(NamedTuple):
    """Rows of attention weights: `largest` where the byte is 255, byte / 254 of `second` elsewhere.

    A row sums to 1, so `second` is 1/2 at most, and no weight is off by more than second / 508, which is below 0.001;
    with one scale for the whole row it would be twice as much. The weights on prefix tokens are kept exactly, so that
    the weight on all patches together, 1 minus those, is no sum of rounded numbers.
    """

    largest: Float[Tensor, "H T"]
    second: Float[Tensor, "H T"]
    prefix: Float[Tensor, "H T P"]
    bytes: UInt8[Tensor, "H T T"]


def quantize(weights: Float[Tensor, "H T T"], prefix: int) -> QuantizedRows:
    weights = weights.float().cpu()
    largest = weights.amax(-1)
    others = weights.masked_fill(weights == largest[..., None], 0)
    second = others.amax(-1)
    steps = (others / second.clamp(min=TINY)[..., None] * STEPS).round().to(torch.uint8)
    levels = steps.masked_fill(weights == largest[..., None], STEPS + 1)
    return QuantizedRows(largest, second, weights[..., :prefix], levels)


def dequantize(rows: QuantizedRows) -> Float[Tensor, "H T T"]:
    """Return the weights as the page computes them (decode.js)."""
    weights = rows.bytes * (rows.second[..., None] / STEPS)
    weights = torch.where(rows.bytes > STEPS, rows.largest[..., None], weights)
    weights[..., : rows.prefix.shape[-1]] = rows.prefix
    return weights


def pack_attention(weights: Float[Tensor, "H T T"], prefix: int) -> PackedAttention:
    """Pack largest, second, prefix as little-endian float32, then the bytes, each for all heads and queries."""
    rows = quantize(weights, prefix)
    numbers = b"".join(part.numpy().astype("<f4").tobytes() for part in rows[:3])
    stream = zlib.compress(numbers + np.ascontiguousarray(rows.bytes.numpy()).tobytes(), level=6)
    error = (dequantize(rows) - weights.float().cpu()).abs().max().item()
    return PackedAttention(weights.shape[0], base64.b64encode(stream).decode(), error)
