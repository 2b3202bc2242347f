"""Losses: functions of a model's outputs and their targets."""

from vitkit.losses.contrastive import sigmoid, softmax
from vitkit.losses.next_token import next_token
from vitkit.losses.per_sample import binary_cross_entropy, cross_entropy, squared_error
from vitkit.losses.ranks import gather_with_gradient

__all__ = [
    "binary_cross_entropy",
    "cross_entropy",
    "gather_with_gradient",
    "next_token",
    "sigmoid",
    "softmax",
    "squared_error",
]
