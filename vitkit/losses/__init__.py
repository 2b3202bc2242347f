"""Losses: functions of a model's outputs and their targets."""

from vitkit.losses.contrastive import sigmoid, softmax
from vitkit.losses.per_sample import binary_cross_entropy, cross_entropy, squared_error
from vitkit.losses.ranks import gather_with_gradient

__all__ = ["binary_cross_entropy", "cross_entropy", "sigmoid", "softmax", "squared_error", "gather_with_gradient"]
