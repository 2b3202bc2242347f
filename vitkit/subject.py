"""What a command is asked to look at: a network, by folder, config or size, and a picture to show it."""

from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import yaml
from PIL import Image
from torch import nn

from vitkit.configs import build
from vitkit.data.sources import open_source
from vitkit.models import SIZES, ViT, encoder
from vitkit.preprocess import Preprocess
from vitkit.weights import open_model


class Subject(NamedTuple):
    """`title` says what the picture is."""

    model: nn.Module
    preprocess: Preprocess
    picture: Image.Image
    title: str


def open_subject(what: str) -> Subject:
    """A model folder, a config of `vitkit fit`, or a size such as b/16 (224 pixels, 1000 classes).

    Raises: ValueError, one line.
    """
    if name := named(what):
        model = ViT(encoder(name[0]), patch_size=(name[1], name[1]))
        return Subject(model, Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3), *photograph())
    if what.endswith((".yaml", ".yml")):
        return read_config(Path(what))
    model, preprocess, *_ = open_model(what)
    return Subject(model, preprocess, *photograph())


def named(what: str) -> tuple[str, int] | None:
    """The size and the patch size in b/16."""
    size, _, patch = what.partition("/")
    return (size, int(patch)) if size in SIZES and patch.isdecimal() else None


def read_config(path: Path) -> Subject:
    """The network of a config of `vitkit fit`, completed from its data as the command does, or a network alone."""
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} must be YAML, got {' '.join(str(error).split())}") from error
    match config:
        case {"model": {"init_args": {"model": {**network}}}, "data": {"init_args": {"train": str(train), **data}}}:
            source = open_source(train)
            given = {field.name: data[field.name] for field in fields(Preprocess) if field.name in data}
            preprocess = Preprocess.from_dict({"interpolation": "bicubic", "crop": 1.0, **given})
            links = {"image_size": preprocess.size, "channels": preprocess.channels, "outputs": len(source.classes)}
            model = build({**network, "init_args": links | network.get("init_args", {})})
            return Subject(model, preprocess, source.picture(0), source.name(0))
        case {"class_path": _, **rest}:
            sizes = {"image_size": (224, 224), "channels": 3, **rest.get("init_args", {})}
            half = (0.5,) * sizes["channels"]
            return Subject(build(config), Preprocess(tuple(sizes["image_size"]), half, half), *photograph())
    raise ValueError(f"{path} must be a config of `vitkit fit`, or the class_path and init_args of a network")


def photograph() -> tuple[Image.Image, str]:
    if find_spec("sklearn") is None:
        return Image.effect_noise((224, 224), 64), "noise, for want of scikit-learn's photograph; try --image"
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image("flower.jpg")), "flower.jpg of scikit-learn"
