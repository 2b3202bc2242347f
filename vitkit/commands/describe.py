"""`vitkit describe`: every stage of a network, with what it costs and what it does to one real image."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from PIL import Image

from vitkit.bundle.bundle import Bundle, get_preprocess, get_tokenizer
from vitkit.bundle.transfer import start_from
from vitkit.commands.options import add_size
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess, read
from vitkit.inference.stages import closed_form, describe, format_stages, notes
from vitkit.models import SIZES, ViT, encoder
from vitkit.models.parts import get_inputs

if TYPE_CHECKING:
    from vitkit.data.image_data import ImageData


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("vitkit describe", description="Show a network's stages, for one real image.")
    parser.add_argument("what", help="a model folder, a config of vitkit fit, or a size such as b/16")
    parser.add_argument("--image", type=Path, help="a picture file (default: the first of the config's data)")
    add_size(parser)
    parser.add_argument("--text", default="a photo of a flower.", help="for a CLIP (default: %(default)s)")
    options, overrides = parser.parse_known_args(arguments)

    torch.manual_seed(0)
    bundle, picture, title = open_described(options.what, overrides)
    model, preprocess = bundle.model, get_preprocess(bundle)
    if options.image:
        picture, title = read(options.image), options.image
    if options.size:
        preprocess = replace(preprocess, size=tuple(options.size))
    inputs = [preprocess(picture)[None]]
    if "texts" in get_inputs(model):
        inputs.append(get_tokenizer(bundle)(options.text))
        title = f"{title}, and told {options.text!r} ({inputs[1].shape[1]} ids)"
    stages = describe(model.eval(), *inputs)
    print(
        f"{options.what}: {type(model).__name__} in evaluation mode, shown {title}",
        "",
        format_stages(stages),
        "",
        sep="\n",
    )
    print("FLOPs are multiply-adds times 2, in matrix products and convolutions. Variance is over all of an output.")
    if name := named(options.what):
        print(f"closed formula: {closed_form(*name):,} parameters")
    for note in notes(stages):
        print(f"note: {note}")
    return 0


def open_described(what: str, overrides: Sequence[str] = ()) -> tuple[Bundle, Image.Image, str]:
    """Open a model folder, a config of `vitkit fit` with what its command line may add, or a size such as b/16.

    Returns: the model, an image to show it, and what the image is. Of a size the image is of 224 pixels.
    Raises: ValueError, one line.
    """
    if what.endswith((".yaml", ".yml")):
        from vitkit.fit.run_config import CLI  # Lightning takes seconds, and nothing else here needs it

        cli = CLI(["--config", what, *overrides], "describe")
        data = cast("ImageData", cli.datamodule)
        if cli.config.pretrained:
            start_from(cli.config.pretrained, cli.model.get_submodule("model"), data.names, data.preprocess)
        shown = data.source.picture(0), data.source.name(0)
        model = cli.model.get_submodule("model")
        return Bundle(model, cli.portable, data.preprocess, tokenizer=data.tokenizer, source=what), *shown
    if overrides:
        raise ValueError(f"only a config takes further options, got {' '.join(overrides)}")
    if name := named(what):
        model = ViT(encoder(name[0]), patch_size=(name[1], name[1]))
        return Bundle(model, {}, Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3), source=what), *photograph()
    return open_model(what), *photograph()


def named(what: str) -> tuple[str, int] | None:
    """The size and the patch size in b/16."""
    size, _, patch = what.partition("/")
    return (size, int(patch)) if size in SIZES and patch.isdecimal() and int(patch) else None


def photograph() -> tuple[Image.Image, str]:
    if find_spec("sklearn") is None:
        return Image.effect_noise((224, 224), 64), "noise, for want of scikit-learn's photograph; try --image"
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image("flower.jpg")), "flower.jpg of scikit-learn"
