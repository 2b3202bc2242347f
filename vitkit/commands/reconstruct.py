"""`vitkit reconstruct`: what a masked autoencoder takes the hidden patches of pictures for.

Letters: B batch, C channels, H W pixels, h w patches down and across.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitkit.commands.batches import add_reading, chosen_reading
from vitkit.commands.predict import STDIN, named, refuse
from vitkit.commands.rows import Unreadable
from vitkit.convert.open import open_model
from vitkit.data.batches import Reading, groups
from vitkit.data.order import derive
from vitkit.data.pictures import under_seeds
from vitkit.data.preprocess import PictureError, Preprocess
from vitkit.figures import triptychs
from vitkit.losses import squared_error
from vitkit.models import MAE, Reconstruction, blockwise, uniform
from vitkit.support.devices import present
from vitkit.support.files import free_name, new_or_empty, replacing
from vitkit.support.output import written

Masking = Callable[[int, tuple[int, int], torch.device], Tensor]


MASKINGS: dict[str, Masking] = {"uniform": uniform, "blockwise": blockwise}


class Reconstructed(NamedTuple):
    """The original, what was visible and what was made of it, in one picture; and the error of the hidden patches."""

    path: Path
    picture: Image.Image
    error: float


class Opened(NamedTuple):
    model: MAE
    preprocess: Preprocess


def reconstruct(
    model: str | Path,
    paths: str | Path | Iterable[str | Path],
    *,
    ratio: float | None = None,
    masking: Masking | None = None,
    seed: int = 0,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    reduce: float | None = None,
    unreadable: Callable[[PictureError], None] = refuse,
) -> Iterator[Reconstructed]:
    """Hide patches of picture files and let the MAE in a folder say what they hold.

    The mask of a picture depends on `seed` and on its place among the paths alone.

    Args:
        paths: also just one.
        ratio, masking: others than the model was trained with, such as vitkit.models.blockwise.
        seed: other masks for other seeds.
        batch, workers, device: see `vitkit reconstruct --help`.
        reduce: as in Pictures.
        unreadable: gets the error of each picture that fails.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    for found in results(open_mae(model, ratio, masking), paths, seed, Reading(batch, workers, device, reduce)):
        if isinstance(found, Reconstructed):
            yield found
        else:
            unreadable(found.error)


def open_mae(folder: str | Path, ratio: float | None = None, masking: Masking | None = None) -> Opened:
    """Raises: ValueError, one line, for a folder of something else, and for a ratio that hides all or nothing."""
    model, preprocess, *_ = open_model(folder)
    if not isinstance(model, MAE):
        raise ValueError(f"model must be an MAE to reconstruct, got {type(model).__name__} in {folder}")
    if ratio is not None:
        if not 0 < ratio < 1:
            raise ValueError(f"ratio must be above 0 and below 1, got ratio={ratio:g}")
        model.ratio = ratio
    model.keep(model.embed.grid(*preprocess.size))
    model.masking = masking or model.masking
    return Opened(model, preprocess)


def results(
    opened: Opened,
    paths: Iterable[str | Path],
    seed: int,
    reading: Reading,
    title: str | None = None,
    total: int | None = None,
) -> Iterator[Reconstructed | Unreadable]:
    """One for every path, in order."""
    model, preprocess = opened.model.to(present(reading.device)), opened.preprocess
    first = 0
    for names, batch in groups((os.fspath(path) for path in paths), preprocess, reading, title, total):
        places = batch.indices.tolist()
        made = draw(model, preprocess, batch.images, [derive(seed, first + place) for place in places])
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
    errors = squared_error(pixels, model.target(images, hidden)).tolist()
    rows = zip(images.split(1), pixels.split(1), hidden.split(1), strict=True)
    pictures = [triptychs(model, preprocess, image, Reconstruction(*found)) for image, *found in rows]
    return list(zip(pictures, errors, strict=True))


def noise(model: MAE, seeds: Sequence[int], size: tuple[int, int]) -> Float[Tensor, "B h w"]:
    """Drawn for each picture by itself, on the CPU, so that neither the batch nor the device changes it."""
    grid = model.embed.grid(*size)
    found = under_seeds(seeds, lambda: model.masking(1, grid, torch.device("cpu")))
    return found.to(model.embed.prefix.device)


def write(found: Iterable[Reconstructed | Unreadable], folder: Path) -> tuple[list[float], list[Unreadable]]:
    """A file for each, told as it is there; gives back the errors, and what could not be read."""
    errors: list[float] = []
    failures: list[Unreadable] = []
    taken: set[str] = set()
    with written(None) as screen:
        for one in found:
            if isinstance(one, Unreadable):
                failures.append(one)
                continue
            folder.mkdir(exist_ok=True)  # not for nothing
            path = folder / free_name(one.path.stem, taken)
            with replacing(path) as beside:
                one.picture.save(beside, "png")
            errors.append(one.error)
            print(f"{path}  {one.error:.4f}", file=screen, flush=True)
    return errors, failures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit reconstruct",
        description="Hide patches of pictures, and draw beside each other the original, what was visible, and what a "
        "masked autoencoder makes of it: a PNG file for each picture.",
        epilog="example: vitkit reconstruct runs/pretrain_mae_folder/model PICTURES --out drawn --ratio 0.9",
    )
    parser.add_argument("model", help="the folder of an MAE, such as runs/pretrain_mae_folder/model")
    parser.add_argument("images", nargs="+", help="picture files, folders to search for them, - for a list on stdin")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new or empty")
    parser.add_argument("--ratio", type=float, help="of the patches that are hidden (default: as trained)")
    parser.add_argument("--masking", choices=MASKINGS, help="which are hidden together (default: as trained)")
    parser.add_argument("--seed", type=int, default=0, help="other masks for other seeds (default: %(default)s)")
    add_reading(parser)
    options = parser.parse_args(arguments)

    folder, parts = new_or_empty(options.out), named(options.images)
    opened = open_mae(options.model, options.ratio, MASKINGS.get(options.masking))
    total = None if STDIN in options.images else sum(len(list(part)) for part in parts)
    title = None if sys.stdout.isatty() else "reconstruct"  # lines are progress enough
    found = results(opened, chain.from_iterable(parts), options.seed, chosen_reading(options), title, total)
    errors, failures = write(found, folder)
    if errors:
        kind = "normalised " if opened.model.norm_pix else ""
        mean, grid = sum(errors) / len(errors), opened.model.embed.grid(*opened.preprocess.size)
        hidden = 1 - opened.model.keep(grid) / (grid[0] * grid[1])
        pictures = f"{len(errors):,} picture{'s' * (len(errors) > 1)}"
        print(f"{pictures}, {hidden:.0%} hidden: squared error of {kind}patches {mean:.4f}")
    for failure in failures:
        print(f"error: {failure.error}", file=sys.stderr)
    if failures:
        asked = len(errors) + len(failures)
        print(f"error: {len(failures)} of {asked} pictures could not be read", file=sys.stderr)
    return 1 if failures else 0
