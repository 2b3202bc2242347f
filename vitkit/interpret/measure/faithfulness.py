"""Faithfulness of maps: deletion and insertion of their cells, beside random maps, and rank correlation.

B images, C channels, H W pixels, h w the map's cells, K outputs, S steps from no cell to all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Run = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B K"]]
Score = Callable[[Float[Tensor, "B K"], Int[Tensor, " B"]], Float[Tensor, " B"]]

DRAWS = 5  # random maps for the baseline of every curve
SIGMA = 10.0  # of the blur, as in RISE's code, for images of 224 pixels


def select_probability(logits: Float[Tensor, "B K"], targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the softmax probability of each target."""
    return select_logit(logits.softmax(1), targets)


def select_logit(logits: Float[Tensor, "B K"], targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the logit of each target. Raises: ValueError for a target out of range."""
    indices, K = targets.long(), logits.shape[1]
    if not ((indices >= 0) & (indices < K)).all():
        raise ValueError(f"targets must be from 0 to {K - 1}, got targets from {indices.min()} to {indices.max()}")
    return logits.gather(1, indices[:, None])[:, 0]


class Curve(NamedTuple):
    """The target's score after replacing shares of the cells."""

    shares: Float[Tensor, " S"]
    scores: Float[Tensor, "B S"]

    @property
    def area(self) -> Float[Tensor, " B"]:
        """Area under the curve by trapezoids, from 0 to 1 if scores are."""
        return torch.trapezoid(self.scores, self.shares.to(self.scores))


class Faithfulness(NamedTuple):
    """A faithful map has a small area of deletion and a large one of insertion, compared with random maps.

    The random curves are means over the draws, image by image.
    """

    deletion: Curve
    insertion: Curve
    random_deletion: Curve
    random_insertion: Curve


@torch.no_grad()
def measure_faithfulness(
    run: Run,
    images: Float[Tensor, "B C H W"],
    targets: Int[Tensor, " B"],
    maps: Float[Tensor, "B h w"],
    *,
    fill: Float[Tensor, "#B C #H #W"],
    steps: int = 10,
    score: Score = select_probability,
    draws: int = DRAWS,
    seed: int = 0,
) -> Faithfulness:
    """Delete and insert cells, most relevant first (RISE, https://arxiv.org/abs/1806.07421, section 4.2).

    Args:
        fill: replaces deleted cells, and is what insertion starts from, such as `compute_mean_colour` or `blur`: report
            which.
        steps: the most equal shares of the cells.
        draws, seed: of the random maps.
    """
    random = draw_random_maps(maps, draws, seed)
    deletion, insertion = (images, fill.expand_as(images)), (fill.expand_as(images), images)

    def trace(pair: tuple[Tensor, Tensor], maps: Tensor) -> Curve:
        return trace_curve(run, *pair, targets, maps, steps, score)

    def average(pair: tuple[Tensor, Tensor]) -> Curve:
        curves = [trace(pair, maps) for maps in random]
        return Curve(curves[0].shares, torch.stack([curve.scores for curve in curves]).mean(0))

    return Faithfulness(trace(deletion, maps), trace(insertion, maps), average(deletion), average(insertion))


def trace_curve(
    run: Run,
    start: Float[Tensor, "B C H W"],
    end: Float[Tensor, "B C H W"],
    targets: Int[Tensor, " B"],
    maps: Float[Tensor, "B h w"],
    steps: int,
    score: Score,
) -> Curve:
    """Score images while their cells are replaced by those of others, highest map values first."""
    (h, w), (H, W) = maps.shape[1:], start.shape[2:]
    if len(maps) != len(start) or H % h or W % w:
        raise ValueError(
            f"maps must divide {len(start)} images of {H} x {W} pixels into equal cells, got {tuple(maps.shape)}"
        )
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got steps={steps}")
    if not maps.isfinite().all():
        raise ValueError("maps must be finite, got others")
    rank = maps.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1).view_as(maps)
    scores, counts = [], torch.linspace(0, h * w, min(steps, h * w) + 1).round()
    for count in counts.tolist():
        cells = (rank < count).repeat_interleave(H // h, 1).repeat_interleave(W // w, 2)
        scores.append(score(run(torch.where(cells[:, None], end, start)), targets))
    return Curve(counts / (h * w), torch.stack(scores, 1))


def compute_mean_colour(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C 1 1"]:
    return images.mean((2, 3), keepdim=True)


def blur(images: Float[Tensor, "B C H W"], sigma: float = SIGMA) -> Float[Tensor, "B C H W"]:
    """Blur with a Gaussian of `sigma` pixels, cut off at two deviations or at the image's shorter side."""
    from torchvision.transforms.v2.functional import gaussian_blur  # its import takes a second

    size = 2 * min(int(2 * sigma), (min(images.shape[2:]) - 1) // 2) + 1
    return gaussian_blur(images, [size, size], [sigma, sigma])


def draw_random_maps(maps: Float[Tensor, "B h w"], draws: int, seed: int) -> Float[Tensor, "draws B h w"]:
    """Draw maps of uniform noise in the shape of `maps`. Raises: ValueError without draws."""
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got draws={draws}")
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(draws, *maps.shape, generator=generator).to(maps)


def compute_spearman(first: Float[Tensor, "B N"], second: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
    """Return Spearman's rank correlation, row by row; ties share their mean rank. A constant row gives 0."""
    a, b = (rank_values(values) - (values.shape[1] - 1) / 2 for values in (first, second))
    scale = (a.square().sum(1) * b.square().sum(1)).sqrt()
    return torch.where(scale > 0, (a * b).sum(1) / scale, 0)


def rank_values(values: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """Return the rank of each value from 0; ties share their mean rank."""
    below = (values[:, None, :] < values[:, :, None]).sum(2)
    equal = (values[:, None, :] == values[:, :, None]).sum(2)
    return (below + (equal - 1) / 2).to(values.dtype)


@contextmanager
def shuffle_weights(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Shuffle the values of each parameter while the context is open, so that nothing learnt is left.

    A map that stays the same explains the architecture, not the model (https://arxiv.org/abs/1810.03292, section 3).
    """
    generator = torch.Generator().manual_seed(seed)
    originals = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
        yield
    finally:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(originals[name])
