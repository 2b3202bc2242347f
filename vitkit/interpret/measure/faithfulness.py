"""Whether a map says where the evidence is: what happens without it, beside what chance would do.

B pictures, C channels, H W pixels, h w the map's cells, K outputs, S steps from nothing to everything.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Run = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B K"]]
Score = Callable[[Float[Tensor, "B K"], Int[Tensor, " B"]], Float[Tensor, " B"]]

DRAWS = 5  # of random maps, beside every curve
SIGMA = 10.0  # of the blur, as in RISE's code, for pictures of 224 pixels


def probability(logits: Float[Tensor, "B K"], targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """By the softmax."""
    return logit(logits.softmax(1), targets)


def logit(logits: Float[Tensor, "B K"], targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Raises: ValueError for a target that the logits do not have."""
    places, K = targets.long(), logits.shape[1]
    if not ((places >= 0) & (places < K)).all():
        raise ValueError(f"targets must be from 0 to {K - 1}, got targets from {places.min()} to {places.max()}")
    return logits.gather(1, places[:, None])[:, 0]


class Curve(NamedTuple):
    """The score of the target after shares of the cells have been changed."""

    shares: Float[Tensor, " S"]
    scores: Float[Tensor, "B S"]

    @property
    def area(self) -> Float[Tensor, " B"]:
        """Under the curve, by trapezoids: from 0 to 1 where scores are."""
        return torch.trapezoid(self.scores, self.shares.to(self.scores))


class Faithfulness(NamedTuple):
    """A faithful map has a small area of deletion and a large one of insertion, both beside those of random maps.

    The random curves are means of the draws, picture by picture.
    """

    deletion: Curve
    insertion: Curve
    random_deletion: Curve
    random_insertion: Curve


@torch.no_grad()
def faithfulness(
    run: Run,
    images: Float[Tensor, "B C H W"],
    targets: Int[Tensor, " B"],
    maps: Float[Tensor, "B h w"],
    *,
    fill: Float[Tensor, "#B C #H #W"],
    steps: int = 10,
    score: Score = probability,
    draws: int = DRAWS,
    seed: int = 0,
) -> Faithfulness:
    """Deletion and insertion (RISE, https://arxiv.org/abs/1806.07421, section 4.2) of cells, most relevant first.

    Args:
        fill: what takes the place of a cell, and what insertion starts from, as `mean_colour` or `blurred`: state it.
        steps: at most so many equal shares of the cells.
        draws, seed: of the random maps.
    """
    random = random_maps(maps, draws, seed)
    deleting, inserting = (images, fill.expand_as(images)), (fill.expand_as(images), images)

    def curve(pair: tuple[Tensor, Tensor], some: Tensor) -> Curve:
        return replaced(run, *pair, targets, some, steps, score)

    def mean(pair: tuple[Tensor, Tensor]) -> Curve:
        curves = [curve(pair, some) for some in random]
        return Curve(curves[0].shares, torch.stack([one.scores for one in curves]).mean(0))

    return Faithfulness(curve(deleting, maps), curve(inserting, maps), mean(deleting), mean(inserting))


def replaced(
    run: Run,
    start: Float[Tensor, "B C H W"],
    end: Float[Tensor, "B C H W"],
    targets: Int[Tensor, " B"],
    maps: Float[Tensor, "B h w"],
    steps: int,
    score: Score,
) -> Curve:
    """From one picture to the other, cell by cell, those with the highest values first."""
    (h, w), (H, W) = maps.shape[1:], start.shape[2:]
    if len(maps) != len(start) or H % h or W % w:
        raise ValueError(
            f"maps must divide {len(start)} pictures of {H} x {W} pixels into equal cells, got {tuple(maps.shape)}"
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


def mean_colour(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C 1 1"]:
    """Of each picture."""
    return images.mean((2, 3), keepdim=True)


def blurred(images: Float[Tensor, "B C H W"], sigma: float = SIGMA) -> Float[Tensor, "B C H W"]:
    """By a Gaussian of so many pixels, cut off at two deviations, or at the picture's shorter side."""
    from torchvision.transforms.v2.functional import gaussian_blur  # a second, and only now

    size = 2 * min(int(2 * sigma), (min(images.shape[2:]) - 1) // 2) + 1
    return gaussian_blur(images, [size, size], [sigma, sigma])


def random_maps(maps: Float[Tensor, "B h w"], draws: int, seed: int) -> Float[Tensor, "draws B h w"]:
    """Uniform noise of the same shape. Raises: ValueError."""
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got draws={draws}")
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(draws, *maps.shape, generator=generator).to(maps)


def spearman(one: Float[Tensor, "B N"], other: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
    """The correlation of ranks; equal values share theirs. 0 of a constant."""
    a, b = (ranks(values) - (values.shape[1] - 1) / 2 for values in (one, other))
    scale = (a.square().sum(1) * b.square().sum(1)).sqrt()
    return torch.where(scale > 0, (a * b).sum(1) / scale, 0)


def ranks(values: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    below = (values[:, None, :] < values[:, :, None]).sum(2)
    equal = (values[:, None, :] == values[:, :, None]).sum(2)
    return (below + (equal - 1) / 2).to(values.dtype)


@contextmanager
def shuffled_weights(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """While this is open, the values of each parameter are in random order, so that nothing learnt is left.

    A map that stays alike explains the architecture, not the model (https://arxiv.org/abs/1810.03292, section 3).
    """
    generator = torch.Generator().manual_seed(seed)
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
        yield
    finally:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(kept[name])
