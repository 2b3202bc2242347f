"""Attention masks: boolean tensors (B|1, 1, T|1, S), True where a query may attend to a key. Join with `&` and `|`.

B batch, T queries, S keys, A position axes. A causal layer adds its own mask.
"""

import torch
from jaxtyping import Bool, Int, Real
from torch import Tensor


def padding(valid: Bool[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"]:
    """Allow the valid keys, and hide padding."""
    return valid[:, None, None]


def causal(queries: Real[Tensor, "#B T 1"], keys: Real[Tensor, "#B S 1"]) -> Bool[Tensor, "#B 1 T S"]:
    """Allow the keys at the position of the query or before it."""
    return (queries >= keys.mT)[:, None]


def window(
    queries: Real[Tensor, "#B T A"], keys: Real[Tensor, "#B S A"], radius: int | float
) -> Bool[Tensor, "#B 1 T S"]:
    """Allow keys at most `radius` away along every axis."""
    return ((queries[:, :, None] - keys[:, None]).abs() <= radius).all(-1)[:, None]


def prefix(lengths: Int[Tensor, " B"], size: int) -> Bool[Tensor, "B 1 1 {size}"]:
    """Allow the first `lengths` of `size` keys; `causal(...) | prefix(...)` is the mask of a prefix language model."""
    return padding(torch.arange(size, device=lengths.device) < lengths[:, None])


def documents(queries: Int[Tensor, "#B T"], keys: Int[Tensor, "#B S"]) -> Bool[Tensor, "#B 1 T S"]:
    """Allow keys with the same number as the query, such as that of a packed document or of an image."""
    return (queries[:, :, None] == keys[:, None])[:, None]


def lower_right(T: int, S: int, device: torch.device) -> Bool[Tensor, "1 1 {T} {S}"]:
    """Return the causal mask in which the last query attends to every key."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)[None, None]


def join(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """Join the masks with `&`; None counts as a mask that allows all."""
    result = None
    for mask in masks:
        result = mask if result is None else result if mask is None else result & mask
    return result
