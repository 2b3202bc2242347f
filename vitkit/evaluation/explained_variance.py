"""Explained variance of hidden patches: 1 - squared error / variance of each patch over the images.

Errors and variances are those of the decoder's target, as in MAE's loss. With `norm_pix` it is a patch minus its true
mean, divided by its true standard deviation. The share is then that of the pattern within a patch, and says nothing of
the means and contrasts of patches, which such a model does not predict. The MAE paper has no such figure, only the
accuracy after fine-tuning and of linear probes.

B batch, N patches of Q values, M hidden patches.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.data.batches import Reading, read_batches
from vitkit.data.order import derive_seed
from vitkit.data.sources.source import Source
from vitkit.inference.hidden_patches import draw_noise
from vitkit.losses import squared_error
from vitkit.models import MAE
from vitkit.models.parts import require_masked_autoencoder
from vitkit.nn.embed import gather_patches
from vitkit.support.devices import get_device

TRUE_STATISTICS = "a hidden patch counts minus its true mean, divided by its true deviation, which are not predicted"
FLAT = 1e-9  # a smaller variance, in units of the variance within a patch, is rounding


class Tally(NamedTuple):
    """Sums over images in float64, which add up over batches and ranks.

    Args:
        images: their number.
        targets, times: for each patch, the sum of its targets, and how often it was hidden.
        hidden, squares: for each patch, the sums of its targets and of their squares over the images that hide it.
    """

    images: Float[Tensor, ""]
    loss: Float[Tensor, ""]
    targets: Float[Tensor, "N Q"]
    times: Float[Tensor, "N 1"]
    hidden: Float[Tensor, "N Q"]
    squares: Float[Tensor, "N Q"]

    @classmethod
    def from_batch(
        cls, target: Float[Tensor, "B N Q"], hidden: Int64[Tensor, "B M"], losses: Float[Tensor, " B"]
    ) -> "Tally":
        mask = torch.zeros_like(target[:, :, 0]).scatter(1, hidden, 1.0)[:, :, None]
        masked = mask * target
        sums = target.sum(0), mask.sum(0), masked.sum(0), (masked * target).sum(0)
        # Some devices have no float64; the sums of one batch are exact enough in float32.
        return cls(*(part.cpu().double() for part in (losses.new_tensor(len(losses)), losses.sum(), *sums)))

    def add(self, other: "Tally") -> "Tally":
        return Tally(*map(torch.add, self, other))

    def compute_variance(self) -> float:
        """Return the mean squared difference of hidden patches from the mean of each patch over all images."""
        mean = self.targets / self.images
        total = (self.squares - 2 * mean * self.hidden + self.times * mean.square()).sum()
        return (total / (self.times.sum() * mean.shape[1])).item()


@torch.inference_mode()
def evaluate_hidden_patches(
    bundle: Bundle, source: Source, samples: Sequence[int], reading: Reading
) -> tuple[dict[str, Any], list[int]]:
    """Reconstruct the hidden patches of images by an MAE, under the masks of validation in training.

    Returns: the scores of `score_tally`, the number of images, whether patches are normalised, and a line for each
    unreadable image; and the indices of the others.
    Raises: ValueError for images that do not differ, and if none is readable.
    """
    mae = require_masked_autoencoder(bundle.model).to(get_device(reading.device))
    total: Tally | None = None
    unreadable: list[str] = []
    indices: list[int] = []
    for batch in read_batches(source, samples, get_preprocess(bundle), reading, "hidden patches"):
        unreadable += batch.skipped
        indices += batch.indices.tolist()
        if len(batch.indices):
            tally = tally_batch(mae, batch.images.to(mae.embed.prefix), batch.indices)
            total = tally if total is None else total.add(tally)
    if total is None:
        raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(unreadable[:1])}")
    scores = score_tally(total, "source")
    numbers = {"pictures": int(total.images), "unreadable": unreadable, **scores, "norm_pix": mae.norm_pix}
    return numbers, indices


def draw_mask_noise(mae: MAE, indices: Int64[Tensor, " B"], size: Sequence[int]) -> Float[Tensor, "B h w"]:
    """Draw the noise that hides patches of samples; it depends on the index of a sample alone, not on the device."""
    return draw_noise(mae, [*map(derive_seed, indices.tolist())], (size[0], size[1]))


def tally_batch(mae: MAE, images: Float[Tensor, "B C H W"], indices: Int64[Tensor, " B"]) -> Tally:
    """Reconstruct the hidden patches of a batch. Args: indices: of its samples, which the masks depend on."""
    reconstruction = mae(images, hiding := draw_mask_noise(mae, indices, images.shape[2:]))
    patches = torch.arange(hiding[0].numel(), device=images.device).expand(len(images), -1)
    target = mae.make_target(images, patches)
    losses = squared_error(reconstruction.pixels, gather_patches(target, reconstruction.hidden))
    return Tally.from_batch(target, reconstruction.hidden, losses)


def score_tally(tally: Tally, name: str) -> dict[str, float]:
    """Return the squared error of hidden patches, their variance, and the share of it that is explained.

    The share is nan for a single image, which has no variance.

    Args: name: of the images, for an error. Raises: ValueError for images that do not differ.
    """
    loss, variance = (tally.loss / tally.images).item(), tally.compute_variance()
    if variance < FLAT and tally.images > 1:
        raise ValueError(f"{name} must hold pictures that differ, got none")
    share = 1 - loss / variance if tally.images > 1 else math.nan
    return {"loss": loss, "explained_variance": share, "mean_of_patches": variance}
