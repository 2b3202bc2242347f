"""Means over images that come in batches, with confidence intervals.

B images in a batch, n images so far, H heads.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

NORMAL = 1.959963984540054  # the quantile 0.975 of the normal distribution
T_QUANTILES = (math.nan, 12.706204736432095, 4.302652729911275)  # of Student's t for 1 and 2 degrees of freedom


class Summary(NamedTuple):
    """Mean and standard deviation over images, and the 95 % confidence interval of the mean.

    The interval is Student's, mean +- t deviation / sqrt(n); nan for a single image.
    """

    mean: Float[Tensor, " H"]
    deviation: Float[Tensor, " H"]
    low: Float[Tensor, " H"]
    high: Float[Tensor, " H"]

    def to_dict(self) -> dict[str, list[float | None]]:
        return {name: replace_nan(values) for name, values in self._asdict().items()}


class Moments:
    """Count, mean and sum of squared deviations in float64, independent of the batch size.

    Batches are merged as in Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983), eq. 1.5.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(())
        self.squares = torch.zeros(())

    def add(self, values: Float[Tensor, "B ..."]) -> None:
        values = values.detach().to("cpu", torch.float64)
        if not len(values):
            return
        count, mean = self.count + len(values), values.mean(0)
        change = mean - self.mean
        self.squares = self.squares + (values - mean).square().sum(0)
        self.squares = self.squares + change.square() * self.count * len(values) / count
        self.mean = self.mean + change * len(values) / count
        self.count = count

    def summarise(self) -> Summary:
        unknown = torch.full_like(self.mean, math.nan)
        deviation = (self.squares / (self.count - 1)).sqrt() if self.count > 1 else unknown
        half = compute_t_quantile(self.count - 1) * deviation / math.sqrt(max(self.count, 1))
        return Summary(self.mean, deviation, self.mean - half, self.mean + half)


def subtract_summaries(before: Summary, after: Summary, counts: tuple[int, int]) -> Summary:
    """Return after minus before with Welch's interval for independent samples, too wide if both saw the same images.

    Args: counts: images of each.
    """
    variances = [summary.deviation.square() / n for summary, n in zip((before, after), counts, strict=True)]
    error, mean = (variances[0] + variances[1]).sqrt(), after.mean - before.mean
    half = compute_t_quantile(min(counts) - 1) * error  # fewer degrees of freedom than Welch's, so a little wider
    return Summary(mean, (before.deviation.square() + after.deviation.square()).sqrt(), mean - half, mean + half)


def compute_t_quantile(freedom: int) -> float:
    """Return the quantile 0.975 of Student's t, to 0.2 % (Abramowitz and Stegun, 26.7.5); nan without freedom."""
    if freedom < len(T_QUANTILES):
        return T_QUANTILES[max(freedom, 0)]
    z, n = NORMAL, freedom
    terms = (
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4),
    )
    return z + sum(terms)


def replace_nan(values: Tensor | Sequence[float]) -> list[float | None]:
    """Return numbers for JSON, None in place of nan."""
    return [value if math.isfinite(value) else None for value in torch.as_tensor(values).tolist()]
