"""Reconstructions of hidden patches by a masked autoencoder.

B batch, C channels, H W pixels, h w patches down and across.
"""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.convert.open import open_model
from vitkit.data.batches import Reading, read_paths
from vitkit.data.order import derive_seed
from vitkit.data.pictures import draw_under_seeds
from vitkit.data.preprocess import PictureError, Preprocess
from vitkit.inference.prediction import UnreadableImage, raise_unreadable
from vitkit.inference.reconstruction_sheets import draw_sheet
from vitkit.losses import squared_error
from vitkit.models import MAE, Reconstruction, blockwise, uniform
from vitkit.models.parts import find_masked_autoencoder, require_masked_autoencoder
from vitkit.support.devices import get_device

Masking = Callable[[int, tuple[int, int], torch.device], Tensor]


MASKINGS: dict[str, Masking] = {"uniform": uniform, "blockwise": blockwise}


class ReconstructedImage(NamedTuple):
    """A picture of the original, its visible patches, the patch means alone and the reconstruction, and the error.

    Args: error: squared error of the hidden patches, with `norm_pix` of the normalised ones.
    """

    path: Path
    picture: Image.Image
    error: float


def reconstruct(
    model: str | Path | Bundle,
    paths: str | Path | Iterable[str | Path],
    *,
    ratio: float | None = None,
    masking: Masking | None = None,
    seed: int = 0,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    reduce: float | None = None,
    unreadable: Callable[[PictureError], None] = raise_unreadable,
) -> Iterator[ReconstructedImage]:
    """Hide patches of picture files and reconstruct them with an MAE.

    The mask of a picture depends only on `seed` and on its position among the paths.

    Args:
        model: a model folder, or a bundle with an MAE, whose ratio and masking are not changed.
        paths: one or several.
        ratio, masking: instead of those that the model was trained with, such as vitkit.models.blockwise.
        seed: of the masks.
        batch, workers, device: see `vitkit reconstruct --help`.
        reduce: as in Pictures.
        unreadable: called with the error of each picture that cannot be read.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    bundle, reading = open_mae(model, ratio, masking), Reading(batch, workers, device, reduce)
    for outcome in reconstruct_files(bundle, paths, seed, reading):
        if isinstance(outcome, ReconstructedImage):
            yield outcome
        else:
            unreadable(outcome.error)


def open_mae(source: str | Path | Bundle, ratio: float | None = None, masking: Masking | None = None) -> Bundle:
    """Open an MAE with this ratio and masking. An open bundle shares its weights with the returned one.

    Raises: ValueError, one line, for a model of another kind, and for a ratio that hides all or no patches.
    """
    bundle = source if isinstance(source, Bundle) else open_model(source)
    if (original := find_masked_autoencoder(bundle.model)) is None:
        raise ValueError(f"model must be an MAE to reconstruct, got {type(bundle.model).__name__} in {bundle.source}")
    model = copy.copy(original)  # ratio and masking are set on the copy
    if ratio is not None:
        if not 0 < ratio < 1:
            raise ValueError(f"ratio must be above 0 and below 1, got ratio={ratio:g}")
        model.ratio = ratio
    model.count_visible(model.embed.grid(*get_preprocess(bundle).size))
    model.masking = masking or model.masking
    return bundle._replace(model=model)


def reconstruct_files(
    bundle: Bundle,
    paths: Iterable[str | Path],
    seed: int,
    reading: Reading,
    title: str | None = None,
    total: int | None = None,
) -> Iterator[ReconstructedImage | UnreadableImage]:
    """Yield one for each path, in order."""
    model, preprocess = require_masked_autoencoder(bundle.model), get_preprocess(bundle)
    model.to(get_device(reading.device))
    first = 0
    for names, batch in read_paths((os.fspath(path) for path in paths), preprocess, reading, title, total):
        indices = batch.indices.tolist()
        drawings = reconstruct_batch(
            model, preprocess, batch.images, [derive_seed(seed, first + index) for index in indices]
        )
        results = dict(zip(indices, drawings, strict=True))
        lines = iter(batch.skipped)
        for index, name in enumerate(map(Path, names)):
            if index in results:
                yield ReconstructedImage(name, *results[index])
            else:
                yield UnreadableImage(name, PictureError(next(lines)))
        first += len(names)


@torch.inference_mode()
def reconstruct_batch(
    model: MAE, preprocess: Preprocess, images: Float[Tensor, "B C H W"], seeds: Sequence[int]
) -> list[tuple[Image.Image, float]]:
    """Return the sheet and the error of each image, masked by its seed."""
    if not seeds:
        return []
    images = images.to(model.embed.prefix)
    pixels, hidden = model(images, draw_noise(model, seeds, preprocess.size))
    if not pixels.isfinite().all():
        raise ValueError("model must give finite numbers, got others")
    errors = squared_error(pixels, model.make_target(images, hidden)).tolist()
    rows = zip(images.split(1), pixels.split(1), hidden.split(1), strict=True)
    pictures = [draw_sheet(model, preprocess, image, Reconstruction(*outputs)) for image, *outputs in rows]
    return list(zip(pictures, errors, strict=True))


def draw_noise(model: MAE, seeds: Sequence[int], size: tuple[int, int]) -> Float[Tensor, "B h w"]:
    """Return noise drawn for each image alone, on the CPU, so that neither the batch nor the device changes it."""
    grid = model.embed.grid(*size)
    noise = draw_under_seeds(seeds, lambda: model.masking(1, grid, torch.device("cpu")))
    return noise.to(model.embed.prefix.device)
