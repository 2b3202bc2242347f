"""Who may look at whom: boolean tensors (B|1, 1, T|1, S), True may look. Made once, joined with `&` and `|`.

B batch, T queries, S keys, A position axes. A causal layer adds its own triangle.
"""

import torch
from jaxtyping import Bool, Int, Real
from torch import Tensor


def padding(valid: Bool[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"]:
    """Only real tokens are looked at."""
    return valid[:, None, None]


def causal(queries: Real[Tensor, "#B T 1"], keys: Real[Tensor, "#B S 1"]) -> Bool[Tensor, "#B 1 T S"]:
    """A token looks at itself and at what stands before it."""
    return (queries >= keys.mT)[:, None]


def window(
    queries: Real[Tensor, "#B T A"], keys: Real[Tensor, "#B S A"], radius: int | float
) -> Bool[Tensor, "#B 1 T S"]:
    """Keys at most `radius` away along every axis."""
    return ((queries[:, :, None] - keys[:, None]).abs() <= radius).all(-1)[:, None]


def prefix(lengths: Int[Tensor, " B"], size: int) -> Bool[Tensor, "B 1 1 {size}"]:
    """The first `lengths` of `size` keys; `causal(...) | prefix(...)` is the mask of a prefix language model."""
    return padding(torch.arange(size, device=lengths.device) < lengths[:, None])


def documents(queries: Int[Tensor, "#B T"], keys: Int[Tensor, "#B S"]) -> Bool[Tensor, "#B 1 T S"]:
    """Tokens with the same number look at each other: packed documents, or the patches of one image."""
    return (queries[:, :, None] == keys[:, None])[:, None]


def lower_right(T: int, S: int, device: torch.device) -> Bool[Tensor, "1 1 {T} {S}"]:
    """The triangle of a causal layer: the last query sees every key."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)[None, None]


def join(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """All of the masks that are given, joined with `&`."""
    joined = None
    for mask in masks:
        joined = mask if joined is None else joined if mask is None else joined & mask
    return joined
