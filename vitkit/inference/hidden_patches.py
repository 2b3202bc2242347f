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
from vitkit.data.batches import Reading, group_paths
from vitkit.data.order import derive_seed
from vitkit.data.pictures import draw_under_seeds
from vitkit.data.preprocess import PictureError, Preprocess
from vitkit.inference.prediction import Unreadable, raise_unreadable
from vitkit.inference.triptychs import triptychs
from vitkit.losses import squared_error
from vitkit.models import MAE, Reconstruction, blockwise, uniform
from vitkit.models.parts import find_masked_autoencoder, require_masked_autoencoder
from vitkit.support.devices import get_device

Masking = Callable[[int, tuple[int, int], torch.device], Tensor]


MASKINGS: dict[str, Masking] = {"uniform": uniform, "blockwise": blockwise}


class Reconstructed(NamedTuple):
    """The original, what was visible and what was made of it, in one picture; and the error of the hidden patches."""

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
) -> Iterator[Reconstructed]:
    """Hide patches of picture files and let an MAE say what they hold.

    The mask of a picture depends on `seed` and on its place among the paths alone.

    Args:
        model: a model folder, or a bundle with an MAE, whose own ratio and masking stay as they are.
        paths: also just one.
        ratio, masking: others than the model was trained with, such as vitkit.models.blockwise.
        seed: other masks for other seeds.
        batch, workers, device: see `vitkit reconstruct --help`.
        reduce: as in Pictures.
        unreadable: gets the error of each picture that fails.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    for found in reconstruct_files(
        open_mae(model, ratio, masking), paths, seed, Reading(batch, workers, device, reduce)
    ):
        if isinstance(found, Reconstructed):
            yield found
        else:
            unreadable(found.error)


def open_mae(source: str | Path | Bundle, ratio: float | None = None, masking: Masking | None = None) -> Bundle:
    """Open an MAE with this ratio and masking; one that is open already shares its weights with what is returned.

    Raises: ValueError, one line, for a model of another kind, and for a ratio that hides all or nothing.
    """
    bundle = source if isinstance(source, Bundle) else open_model(source)
    if (original := find_masked_autoencoder(bundle.model)) is None:
        raise ValueError(f"model must be an MAE to reconstruct, got {type(bundle.model).__name__} in {bundle.source}")
    model = copy.copy(original)  # ratio and masking are set on this one alone
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
) -> Iterator[Reconstructed | Unreadable]:
    """One for every path, in order."""
    model, preprocess = require_masked_autoencoder(bundle.model), get_preprocess(bundle)
    model.to(get_device(reading.device))
    first = 0
    for names, batch in group_paths((os.fspath(path) for path in paths), preprocess, reading, title, total):
        places = batch.indices.tolist()
        made = draw(model, preprocess, batch.images, [derive_seed(seed, first + place) for place in places])
        read = dict(zip(places, made, strict=True))
        lines = iter(batch.skipped)
        for index, name in enumerate(map(Path, names)):
            yield Reconstructed(name, *read[index]) if index in read else Unreadable(name, PictureError(next(lines)))
        first += len(names)


@torch.inference_mode()
def draw(
    model: MAE, preprocess: Preprocess, images: Float[Tensor, "B C H W"], seeds: Sequence[int]
) -> list[tuple[Image.Image, float]]:
    """Of each picture, which has a mask by its own seed, the triptych and the error."""
    if not seeds:
        return []
    images = images.to(model.embed.prefix)
    pixels, hidden = model(images, noise(model, seeds, preprocess.size))
    if not pixels.isfinite().all():
        raise ValueError("model must give finite numbers, got others")
    errors = squared_error(pixels, model.make_target(images, hidden)).tolist()
    rows = zip(images.split(1), pixels.split(1), hidden.split(1), strict=True)
    pictures = [triptychs(model, preprocess, image, Reconstruction(*found)) for image, *found in rows]
    return list(zip(pictures, errors, strict=True))


def noise(model: MAE, seeds: Sequence[int], size: tuple[int, int]) -> Float[Tensor, "B h w"]:
    """Drawn for each picture by itself, on the CPU, so that neither the batch nor the device changes it."""
    grid = model.embed.grid(*size)
    found = draw_under_seeds(seeds, lambda: model.masking(1, grid, torch.device("cpu")))
    return found.to(model.embed.prefix.device)
