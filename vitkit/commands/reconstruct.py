"""`vitkit reconstruct`: hide patches of pictures and reconstruct them with a masked autoencoder."""

import argparse
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from vitkit.bundle.bundle import get_preprocess
from vitkit.commands.options import STDIN, add_images, add_out, add_reading, collect_images, make_reading
from vitkit.data.omissions import Omissions
from vitkit.inference.hidden_patches import MASKINGS, ReconstructedImage, open_mae, reconstruct_files
from vitkit.inference.prediction import UnreadableImage
from vitkit.inference.reconstruction_sheets import describe_hidden
from vitkit.models.parts import require_masked_autoencoder
from vitkit.support.errors import format_count
from vitkit.support.files import choose_png_name, fill_folder, replace_file, require_new
from vitkit.support.output import open_output


def write_pictures(
    outcomes: Iterable[ReconstructedImage | UnreadableImage], folder: Path
) -> tuple[list[float], list[UnreadableImage]]:
    """Write a file for each image and print its name; return the errors, and the unreadable images."""
    errors: list[float] = []
    failures: list[UnreadableImage] = []
    taken: set[str] = set()
    with fill_folder(folder), open_output(None) as screen:
        for outcome in outcomes:
            if isinstance(outcome, UnreadableImage):
                failures.append(outcome)
                continue
            path = folder / choose_png_name(outcome.path.stem, taken)
            with replace_file(path) as temporary:
                outcome.picture.save(temporary, "png")
            errors.append(outcome.error)
            print(f"{path}  {outcome.error:.4f}", file=screen, flush=True)
    return errors, failures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit reconstruct",
        description="Hide patches of pictures and reconstruct them with a masked autoencoder. Writes a PNG file "
        "for each picture: the original, the visible patches, the patch means alone and the reconstruction.",
        epilog="example: vitkit reconstruct runs/pretrain_mae_folder/model PICTURES --out drawn --ratio 0.9",
    )
    parser.add_argument("model", help="the folder of an MAE, such as runs/pretrain_mae_folder/model")
    add_images(parser)
    add_out(parser, "DIR", "a new or empty folder")
    parser.add_argument("--ratio", type=float, help="share of hidden patches (default: as trained)")
    parser.add_argument("--masking", choices=MASKINGS, help="distribution of the hidden patches (default: as trained)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the masks (default: %(default)s)")
    add_reading(parser)
    options = parser.parse_args(arguments)

    omissions = Omissions()
    folder = require_new(options.out, options.overwrite, folder=True)
    parts = collect_images(options.images, omissions, options.exclude)
    bundle = open_mae(options.model, options.ratio, MASKINGS.get(options.masking))
    total = None if STDIN in options.images else sum(len(list(part)) for part in parts)
    title = None if sys.stdout.isatty() else "reconstruct"  # the lines show the progress
    outcomes = reconstruct_files(bundle, chain.from_iterable(parts), options.seed, make_reading(options), title, total)
    errors, failures = write_pictures(outcomes, folder)
    if errors:
        model = require_masked_autoencoder(bundle.model)
        kind = "normalised " if model.norm_pix else ""
        mean, grid = sum(errors) / len(errors), model.grid(get_preprocess(bundle).size)
        hidden = 1 - model.count_visible(grid) / (grid[0] * grid[1])
        pictures = format_count(len(errors), "pictures")
        print(*describe_hidden(model), sep="\n")
        print(f"{pictures}, {hidden:.0%} hidden: squared error of {kind}patches {mean:.4f}")
    omissions.unreadable += [str(failure.error) for failure in failures]
    return omissions.report(len(errors) + len(failures))
