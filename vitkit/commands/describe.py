"""`vitkit describe`: every stage of a network, with what it costs and what it does to a real image or text."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from PIL import Image
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_preprocess, get_tokenizer
from vitkit.commands.options import add_size
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess, read_image
from vitkit.inference.stages import closed_form, describe, format_stages, notes
from vitkit.models import SIZES, ViT, encoder
from vitkit.models.parts import get_inputs

if TYPE_CHECKING:
    from vitkit.data.data_module import Data
    from vitkit.tasks.task import Task


TEXT = "a photo of a flower."


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("vitkit describe", description="Show a network's stages, for one real image.")
    parser.add_argument("what", help="a model folder, a config of vitkit fit, or a size such as b/16")
    parser.add_argument("--image", type=Path, help="a picture file (default: the first of the config's data)")
    add_size(parser)
    parser.add_argument("--text", help=f"for a model that reads texts (default: {TEXT})")
    options, overrides = parser.parse_known_args(arguments)

    torch.manual_seed(0)
    bundle, image = open_described(options.what, overrides)
    examples = show_inputs(bundle, image, options)
    stages = describe(bundle.model.eval(), *(example.numbers for example in examples))
    print(
        f"{options.what}: {type(bundle.model).__name__} in evaluation mode, "
        + ", and ".join(example.title for example in examples),
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


class NamedImage(NamedTuple):
    image: Image.Image
    name: str


class Example(NamedTuple):
    """A batch of one, and what it is, after "the network is"."""

    numbers: Tensor
    title: str


def show_inputs(bundle: Bundle, image: NamedImage | None, options: argparse.Namespace) -> list[Example]:
    """Return an example for each input of a model, in order.

    Raises: ValueError for a model that names no inputs, or others, and for options of an input that it lacks.
    """
    name, inputs = type(bundle.model).__name__, get_inputs(bundle.model)
    if not inputs or {*inputs} - {*EXAMPLES}:
        raise ValueError(
            f"model must read {' or '.join(EXAMPLES)} to be described, got {name}, which reads {inputs or 'neither'}"
        )
    given = [f"--{option}" for option in ("image", "size") if vars(options)[option] is not None]
    if given and "images" not in inputs:
        raise ValueError(f"{' and '.join(given)} must be left out for a {name}, which reads no images")
    if options.text is not None and "texts" not in inputs:
        raise ValueError(f"--text must be left out for a {name}, which reads no texts")
    return [EXAMPLES[kind](bundle, image, options) for kind in inputs]


def show_image(bundle: Bundle, image: NamedImage | None, options: argparse.Namespace) -> Example:
    if options.image:
        image = NamedImage(read_image(options.image), str(options.image))
    picture, name = image or photograph()
    preprocess = get_preprocess(bundle)
    if options.size:
        preprocess = replace(preprocess, size=tuple(options.size))
    return Example(preprocess(picture)[None], f"shown {name}")


def show_text(bundle: Bundle, image: NamedImage | None, options: argparse.Namespace) -> Example:
    text = TEXT if options.text is None else options.text
    ids = get_tokenizer(bundle)(text)
    return Example(ids, f"told {text!r} ({ids.shape[1]} ids)")


EXAMPLES = {"images": show_image, "texts": show_text}


def open_described(what: str, overrides: Sequence[str] = ()) -> tuple[Bundle, NamedImage | None]:
    """Open a model folder, a config of `vitkit fit` with what its command line may add, or a size such as b/16.

    Returns: the model, and the first image of a config's data, if it has any. Of a size the images are of 224 pixels.
    Raises: ValueError, one line.
    """
    if what.endswith((".yaml", ".yml")):
        from vitkit.data.image_data import get_images
        from vitkit.fit.folder_options import is_pretrained
        from vitkit.fit.initial_weights import load_initial_weights
        from vitkit.fit.run_config import CLI  # Lightning takes seconds, and nothing else here needs it

        cli = CLI(["--config", what, *overrides], "describe")
        data = cast("Data", cli.datamodule)
        task = cast("Task", cli.model)
        model = task.model
        if is_pretrained(cli.config):
            task.bind(data)
            load_initial_weights(cli.config, task, data)
        data.omissions.report(0)  # only the first image is read
        bundle = Bundle(model, cli.portable, data.preprocess, tokenizer=data.tokenizer, source=what)
        if "images" not in get_inputs(model):
            return bundle, None
        source = get_images(data).source
        return bundle, NamedImage(source.read_image(0), source.get_name(0))
    if overrides:
        raise ValueError(f"only a config takes further options, got {' '.join(overrides)}")
    if name := named(what):
        model = ViT(encoder(name[0]), patch_size=(name[1], name[1]))
        return Bundle(model, {}, Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3), source=what), None
    return open_model(what), None


def named(what: str) -> tuple[str, int] | None:
    """The size and the patch size in b/16."""
    size, _, patch = what.partition("/")
    return (size, int(patch)) if size in SIZES and patch.isdecimal() and int(patch) else None


def photograph() -> NamedImage:
    if find_spec("sklearn") is None:
        noise = Image.effect_noise((224, 224), 64)
        return NamedImage(noise, "noise, for want of scikit-learn's photograph; try --image")
    from sklearn.datasets import load_sample_image

    return NamedImage(Image.fromarray(load_sample_image("flower.jpg")), "flower.jpg of scikit-learn")
