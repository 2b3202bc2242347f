"""`vitkit describe`: every stage of a network, with what it costs and what it does to one real image.

D width, L depth.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from PIL import Image
from torch import nn

from vitkit.bundle.transfer import start_from
from vitkit.commands.options import add_size
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess, read
from vitkit.data.tokenizer import Tokenizer
from vitkit.inference.stages import closed_form, describe, format_stages, notes
from vitkit.models import SIZES, ViT, encoder

if TYPE_CHECKING:
    from vitkit.data.data_module import Data


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("vitkit describe", description="Show a network's stages, for one real image.")
    parser.add_argument("what", help="a model folder, a config of vitkit fit, or a size such as b/16")
    parser.add_argument("--image", type=Path, help="a picture file (default: the first of the config's data)")
    add_size(parser)
    parser.add_argument("--text", default="a photo of a flower.", help="for a CLIP (default: %(default)s)")
    options, overrides = parser.parse_known_args(arguments)

    torch.manual_seed(0)
    model, preprocess, picture, title, tokenizer = open_subject(options.what, overrides)
    if options.image:
        picture, title = read(options.image), options.image
    if options.size:
        preprocess = replace(preprocess, size=tuple(options.size))
    inputs = [preprocess(picture)[None]]
    if tokenizer is not None:
        inputs.append(tokenizer(options.text))
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


class Subject(NamedTuple):
    """`title` says what the picture is; there is a tokenizer where the model has a text tower."""

    model: nn.Module
    preprocess: Preprocess
    picture: Image.Image
    title: str
    tokenizer: Tokenizer | None = None


def open_subject(what: str, overrides: Sequence[str] = ()) -> Subject:
    """A model folder, a config of `vitkit fit` with what its command line may add, or a size such as b/16 (224 pixels).

    Raises: ValueError, one line.
    """
    if what.endswith((".yaml", ".yml")):
        from vitkit.data.pairs import Pairs
        from vitkit.fit.run_config import CLI  # Lightning takes seconds, and nothing else here needs it

        cli = CLI(["--config", what, *overrides], "describe")
        data = cast("Data", cli.datamodule)
        if cli.config.pretrained:
            start_from(cli.config.pretrained, cli.model.get_submodule("model"), data.names, data.preprocess)
        tokenizer = data.tokenizer if isinstance(data, Pairs) else None
        shown = data.source.picture(0), data.source.name(0)
        return Subject(cli.model.get_submodule("model"), data.preprocess, *shown, tokenizer)
    if overrides:
        raise ValueError(f"only a config takes further options, got {' '.join(overrides)}")
    if name := named(what):
        model = ViT(encoder(name[0]), patch_size=(name[1], name[1]))
        return Subject(model, Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3), *photograph())
    model, preprocess, _, tokenizer = open_model(what)
    return Subject(model, preprocess, *photograph(), tokenizer)


def named(what: str) -> tuple[str, int] | None:
    """The size and the patch size in b/16."""
    size, _, patch = what.partition("/")
    return (size, int(patch)) if size in SIZES and patch.isdecimal() and int(patch) else None


def photograph() -> tuple[Image.Image, str]:
    if find_spec("sklearn") is None:
        return Image.effect_noise((224, 224), 64), "noise, for want of scikit-learn's photograph; try --image"
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image("flower.jpg")), "flower.jpg of scikit-learn"
