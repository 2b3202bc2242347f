"""`vitkit describe`: the stages of a model, with their parameters, FLOPs and outputs for a real image or text."""

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
from vitkit.convert.export_targets import format_export_targets
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess, read_image
from vitkit.inference.stages import count_parameters, format_stages, list_anomalies, measure_stages
from vitkit.models import SIZES, ViT, encoder
from vitkit.models.parts import get_inputs
from vitkit.support.errors import format_count

if TYPE_CHECKING:
    from vitkit.data.data_module import Data
    from vitkit.tasks.task import Task


TEXT = "a photo of a flower."


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit describe",
        description="Show the stages of a model for a real image or text: shapes, parameters, FLOPs, activations.",
    )
    parser.add_argument("model", help="a model folder, a config of vitkit fit, or a size such as b/16")
    parser.add_argument("--image", type=Path, help="a picture file (default: the first of the data, or a photograph)")
    add_size(parser)
    parser.add_argument("--text", help=f"input of a text tower (default: {TEXT})")
    options, overrides = parser.parse_known_args(arguments)

    torch.manual_seed(0)
    bundle, image = open_network(options.model, overrides)
    examples = make_examples(bundle, image, options)
    stages = measure_stages(bundle.model.eval(), *(example.inputs for example in examples))
    print(
        f"{options.model}: {type(bundle.model).__name__} in evaluation mode; "
        + "; ".join(example.title for example in examples),
        "",
        format_stages(stages),
        "",
        sep="\n",
    )
    print("FLOPs are multiply-adds times 2, in matrix products and convolutions. Mean and variance are of all values.")
    if size := parse_vit_size(options.model):
        print(f"by formula: {format_count(count_parameters(*size), 'parameters')}")
    if bundle.config:
        print(format_export_targets(bundle.config, bundle.preprocess, bundle.tokenizer))
    for line in list_anomalies(stages):
        print(f"note: {line}")
    return 0


class ExampleImage(NamedTuple):
    image: Image.Image
    name: str


class Example(NamedTuple):
    """A batch of one, and where it comes from."""

    inputs: Tensor
    title: str


def make_examples(bundle: Bundle, image: ExampleImage | None, options: argparse.Namespace) -> list[Example]:
    """Return an example for each input of a model, in order.

    Raises: ValueError for a model without `inputs`, or with other inputs, and for options of an input that it lacks.
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


def make_image_example(bundle: Bundle, image: ExampleImage | None, options: argparse.Namespace) -> Example:
    if options.image:
        image = ExampleImage(read_image(options.image), str(options.image))
    picture, name = image or load_photograph()
    preprocess = get_preprocess(bundle)
    if options.size:
        preprocess = replace(preprocess, size=tuple(options.size))
    return Example(preprocess(picture)[None], f"image: {name}")


def make_text_example(bundle: Bundle, image: ExampleImage | None, options: argparse.Namespace) -> Example:
    text = TEXT if options.text is None else options.text
    ids = get_tokenizer(bundle)(text)
    return Example(ids, f"text: {text!r} ({ids.shape[1]} ids)")


EXAMPLES = {"images": make_image_example, "texts": make_text_example}


def open_network(source: str, overrides: Sequence[str] = ()) -> tuple[Bundle, ExampleImage | None]:
    """Open a model folder, a config of `vitkit fit` with further options, or a size such as b/16.

    Returns: the model, for images of 224 pixels if a size is given, and the first image of a config's data, if any.
    Raises: ValueError, one line.
    """
    if source.endswith((".yaml", ".yml")):
        from vitkit.data.image_data import get_images
        from vitkit.fit.folder_options import is_pretrained
        from vitkit.fit.initial_weights import load_initial_weights
        from vitkit.fit.run_config import CLI  # Lightning takes seconds to import, and only configs need it

        cli = CLI(["--config", source, *overrides], "describe")
        data = cast("Data", cli.datamodule)
        task = cast("Task", cli.model)
        model = task.model
        if is_pretrained(cli.config):
            task.bind(data)
            load_initial_weights(cli.config, task, data)
        data.omissions.report(0)  # only the first image is read
        bundle = Bundle(model, cli.portable, data.preprocess, tokenizer=data.tokenizer, source=source)
        if "images" not in get_inputs(model):
            return bundle, None
        images = get_images(data).source
        return bundle, ExampleImage(images.read_image(0), images.get_name(0))
    if overrides:
        raise ValueError(f"only a config takes further options, got {' '.join(overrides)}")
    if size := parse_vit_size(source):
        name, patch = size
        model = ViT(encoder(name), patch_size=(patch, patch))
        return Bundle(model, {}, Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3), source=source), None
    return open_model(source), None


def parse_vit_size(text: str) -> tuple[str, int] | None:
    """Return the size and the patch size of a name such as b/16; None for other names."""
    size, _, patch = text.partition("/")
    return (size, int(patch)) if size in SIZES and patch.isdecimal() and int(patch) else None


def load_photograph() -> ExampleImage:
    if find_spec("sklearn") is None:
        noise = Image.effect_noise((224, 224), 64)
        return ExampleImage(noise, "noise, as the photograph needs scikit-learn; or give --image")
    from sklearn.datasets import load_sample_image

    return ExampleImage(Image.fromarray(load_sample_image("flower.jpg")), "flower.jpg of scikit-learn")
