"""The model that --like names: it describes tensors in timm's layout or MAE's that have the same architecture."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from vitkit.bundle.bundle import get_preprocess
from vitkit.bundle.folder import open_folder
from vitkit.bundle.weights import Shapes
from vitkit.convert.config_slots import read_part
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.convert.timm.catalog import (
    create_timm_model,
    create_timm_skeleton,
    is_multilabel,
    read_timm_class_names,
    read_timm_preprocess,
)
from vitkit.convert.timm.config import Facts
from vitkit.data.preprocess import Preprocess
from vitkit.nn import bicubic, bicubic_antialias
from vitkit.support.files import read_json


class Reference(NamedTuple):
    """The description of a model. Args: traits: of `vitkit.convert.timm.config.read_traits`."""

    facts: Facts
    traits: Mapping[str, object]
    preprocess: Preprocess
    class_names: tuple[str, ...] | None
    multilabel: bool = False
    decoder_heads: int | None = None
    norm_pix: bool | None = None


def read_reference(like: str, shapes: Shapes) -> Reference:
    """Read the description of timm:NAME, or of a folder of vitkit or timm. Nothing is downloaded.

    Args: shapes: of the weights that it describes.
    Raises: ValueError for other sources.
    """
    name = like.removeprefix("timm:")
    if (folder := Path(name).expanduser()).is_dir():
        if (folder / "config.yaml").is_file():
            return read_folder_reference(folder)
        if (folder / "config.json").is_file() and "architecture" in read_json(folder / "config.json"):
            reference = read_timm_reference(create_timm_skeleton(like, folder, shapes))
            return reference._replace(multilabel=is_multilabel(folder))
    if folder.is_dir() or re.match(r"[a-z]{2,}:", name):
        rule = "like must be timm:NAME, or a folder with vitkit's config.yaml or timm's config.json"
        raise ValueError(f"{rule}, for a file in timm's layout or MAE's, got like={like}")
    with torch.device("meta"):
        return read_timm_reference(create_timm_model(f"timm:{name}", name, pretrained=False))


def check_architecture(
    source: str, traits: Mapping[str, object], like: str, reference_traits: Mapping[str, object]
) -> None:
    """Raise ValueError that lists the differences of two architectures, if there are any."""
    if differences := [
        f"{name} {reference_traits[name]} for {traits[name]}"
        for name in traits
        if traits[name] != reference_traits[name]
    ]:
        raise ValueError(
            f"like must be a model of the same architecture as {source}, got {like} with {', '.join(differences)}"
        )


def read_timm_reference(model: nn.Module) -> Reference:
    class_names, _ = read_timm_class_names(cast(Any, model).pretrained_cfg, cast(Any, model).num_classes)
    facts, traits = timm_config.read_facts(model), timm_config.read_traits(model.state_dict())
    return Reference(facts, traits, read_timm_preprocess(model)[0], class_names)


def read_folder_reference(folder: Path) -> Reference:
    """Read the description of a model folder. Raises: ValueError for a model that timm does not support."""
    from timm.models.vision_transformer import VisionTransformer

    bundle = open_folder(folder)
    config: dict[str, Any] = {**bundle.config}
    state = bundle.model.state_dict()
    args = read_part(config).args
    decoder_heads = read_part(args["decoder"]).args["heads"] if "decoder" in args else None
    if decoder_heads is not None:
        shared = ("encoder", "image_size", "patch_size", "channels", "prefix", "table")
        arguments = config["init_args"]
        vit_args = {name: arguments.get(name, args[name]) for name in shared} | {"outputs": 0, "pool": "vitkit.nn.Mean"}
        config = {"class_path": "vitkit.models.ViT", "init_args": vit_args}
        state = {name: tensor for name, tensor in state.items() if not name.startswith("decoder.")}
    with torch.device("meta"):
        facts = timm_config.read_facts(VisionTransformer(**timm_config.make_arguments(config)))
    antialias = read_part(read_part(args["table"]).args.get("resample", bicubic_antialias)).kind is not bicubic
    traits = timm_config.read_traits(timm_tensors.from_vitkit(state, config))
    description = facts._replace(antialias=antialias), traits, get_preprocess(bundle), bundle.class_names
    return Reference(*description, bundle.multilabel, decoder_heads, args.get("norm_pix"))
