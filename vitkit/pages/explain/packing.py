"""Weights of attention in a byte each, small enough for a page that holds all of them.

H heads, T tokens, P prefix tokens.
"""

import base64
import zlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

STEPS = 254  # 255 says: the row's largest
TINY = 1e-30


class Packed(NamedTuple):
    """One layer. `content` is Base64 of a zlib stream, `error` the largest difference to the weights."""

    heads: int
    content: str
    error: float


class Rows(NamedTuple):
    """A row is `largest` where its byte is 255, and byte / 254 of `second` elsewhere.

    A row sums to 1, so `second` is 1/2 at most, and no weight is off by more than second / 508, which is below 0.001;
    with one scale for the whole row it would be twice as much. Prefix tokens are kept as they are, so that what goes to
    all patches together, 1 minus those, is no sum of rounded numbers.
    """

    largest: Float[Tensor, "H T"]
    second: Float[Tensor, "H T"]
    prefix: Float[Tensor, "H T P"]
    bytes: UInt8[Tensor, "H T T"]


def rounded(weights: Float[Tensor, "H T T"], prefix: int) -> Rows:
    weights = weights.float().cpu()
    largest = weights.amax(-1)
    others = weights.masked_fill(weights == largest[..., None], 0)
    second = others.amax(-1)
    steps = (others / second.clamp(min=TINY)[..., None] * STEPS).round().to(torch.uint8)
    places = steps.masked_fill(weights == largest[..., None], STEPS + 1)
    return Rows(largest, second, weights[..., :prefix], places)


def unpacked(rows: Rows) -> Float[Tensor, "H T T"]:
    """What a page makes of them."""
    weights = rows.bytes * (rows.second[..., None] / STEPS)
    weights = torch.where(rows.bytes > STEPS, rows.largest[..., None], weights)
    weights[..., : rows.prefix.shape[-1]] = rows.prefix
    return weights


def pack_attention(weights: Float[Tensor, "H T T"], prefix: int) -> Packed:
    """Largest, second, prefix as little-endian float32, then the bytes; each for all heads and queries in order."""
    rows = rounded(weights, prefix)
    numbers = b"".join(part.numpy().astype("<f4").tobytes() for part in rows[:3])
    stream = zlib.compress(numbers + np.ascontiguousarray(rows.bytes.numpy()).tobytes(), level=6)
    error = (unpacked(rows) - weights.float().cpu()).abs().max().item()
    return Packed(weights.shape[0], base64.b64encode(stream).decode(), error)
