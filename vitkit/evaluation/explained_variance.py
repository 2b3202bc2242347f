"""How much better hidden patches are known than by the mean of each over the pictures.

B batch, N patches of Q numbers, M of them hidden.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.data.batches import Reading, read_batches
from vitkit.data.order import derive_seed
from vitkit.data.sources.source import Source
from vitkit.inference.hidden_patches import noise
from vitkit.losses import squared_error
from vitkit.models import MAE
from vitkit.models.parts import require_masked_autoencoder
from vitkit.nn.embed import gather_patches
from vitkit.support.devices import get_device

FLAT = 1e-9  # what deviates less, in units of a patch's own deviation, is rounding


class Tally(NamedTuple):
    """Sums over pictures in float64, which add up over batches and ranks: how many they are, their losses, of each
    patch its target, how often it was hidden, and then its target and the squares of it.
    """

    pictures: Float[Tensor, ""]
    loss: Float[Tensor, ""]
    targets: Float[Tensor, "N Q"]
    times: Float[Tensor, "N 1"]
    hidden: Float[Tensor, "N Q"]
    squares: Float[Tensor, "N Q"]

    @classmethod
    def of(cls, target: Float[Tensor, "B N Q"], hidden: Int64[Tensor, "B M"], losses: Float[Tensor, " B"]) -> "Tally":
        mask = torch.zeros_like(target[:, :, 0]).scatter(1, hidden, 1.0)[:, :, None]
        behind = mask * target
        sums = target.sum(0), mask.sum(0), behind.sum(0), (behind * target).sum(0)
        # There is no float64 on some devices; the sums of one batch lose nothing that matters.
        return cls(*(part.cpu().double() for part in (losses.new_tensor(len(losses)), losses.sum(), *sums)))

    def plus(self, other: "Tally") -> "Tally":
        return Tally(*map(torch.add, self, other))

    def deviation(self) -> float:
        """The mean square of what hidden patches differ by from their means over all pictures."""
        mean = self.targets / self.pictures
        total = (self.squares - 2 * mean * self.hidden + self.times * mean.square()).sum()
        return (total / (self.times.sum() * mean.shape[1])).item()


@torch.inference_mode()
def evaluate_hidden_patches(bundle: Bundle, source: Source, samples: Sequence[int], reading: Reading) -> dict[str, Any]:
    """Reconstruct hidden patches of these images by an MAE, behind the masks that validation in training draws.

    Returns: what `score_tally` returns, the number of images, and a line for each that could not be read.
    Raises: ValueError for images that do not differ, and if none could be read.
    """
    mae = require_masked_autoencoder(bundle.model).to(get_device(reading.device))
    total: Tally | None = None
    unreadable: list[str] = []
    for batch in read_batches(source, samples, get_preprocess(bundle), reading, "hidden patches"):
        unreadable += batch.skipped
        if len(batch.indices):
            tally = tally_batch(mae, batch.images.to(mae.embed.prefix), batch.indices)
            total = tally if total is None else total.plus(tally)
    if total is None:
        raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(unreadable[:1])}")
    return {"pictures": int(total.pictures), "unreadable": unreadable, **score_tally(total, "source")}


def draw_mask_noise(mae: MAE, indices: Int64[Tensor, " B"], size: Sequence[int]) -> Float[Tensor, "B h w"]:
    """Draw the noise that hides patches of samples; it depends on the index of a sample alone, not on the device."""
    return noise(mae, [*map(derive_seed, indices.tolist())], (size[0], size[1]))


def tally_batch(mae: MAE, images: Float[Tensor, "B C H W"], indices: Int64[Tensor, " B"]) -> Tally:
    """Reconstruct the hidden patches of a batch. Args: indices: those of its samples, which the masks depend on."""
    reconstruction = mae(images, hiding := draw_mask_noise(mae, indices, images.shape[2:]))
    patches = torch.arange(hiding[0].numel(), device=images.device).expand(len(images), -1)
    target = mae.make_target(images, patches)
    losses = squared_error(reconstruction.pixels, gather_patches(target, reconstruction.hidden))
    return Tally.of(target, reconstruction.hidden, losses)


def score_tally(tally: Tally, name: str) -> dict[str, float]:
    """Return the squared error of hidden patches, that of each patch's mean, and the share of it that is explained.

    Args: name: what an error calls the images. Raises: ValueError for images that do not differ.
    """
    loss, deviation = (tally.loss / tally.pictures).item(), tally.deviation()
    if deviation < FLAT:
        raise ValueError(f"{name} must hold pictures that differ, got none")
    return {"loss": loss, "explained_variance": 1 - loss / deviation, "mean_of_patches": deviation}
