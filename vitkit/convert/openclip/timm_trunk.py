"""A model of vitkit as an image tower of OpenCLIP that is timm's, known there by its name only (SigLIP)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitkit.convert.config_slots import read_part
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors

NAMES = "vit_*siglip*"
# The projection is OpenCLIP's, and how a table is resampled to other sizes is said nowhere there.
FREE = ("outputs", "head", "init", "table")


def write_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's config there, of which only the image tower is known.

    Raises: ValueError for a tower that timm has under no name.
    """
    args = read_part(config).args
    outputs = args["outputs"]
    vision = {
        "timm_model_name": architecture(config),
        "timm_model_pretrained": False,
        "timm_pool": "map",
        "timm_proj": "linear" if outputs else "none",
        "timm_proj_bias": bool(outputs and read_part(args["head"]).args["bias"]),
        "image_size": [*args["image_size"]],
    }
    return {"embed_dim": outputs or read_part(args["encoder"]).args["dim"], "vision_cfg": vision}


def architecture(config: Mapping[str, Any]) -> str:
    """A name of timm's for this very tower."""
    import timm as library

    own = arguments(config)
    height, width = own["image_size"]
    names = library.list_models(NAMES)
    for name in names:
        known = library.get_pretrained_cfg(name)
        if known is not None and known.input_size[1:] != (height, width):
            continue
        with torch.device("meta"):
            model = library.create_model(name, num_classes=0)
        if model.global_pool != "map":
            continue
        if arguments(timm_config.read_config(model.state_dict(), timm_config.read_facts(model))) == own:
            return name
    raise ValueError(
        "an image tower that pools by attention must be one of timm's for OpenCLIP, which knows them by name, got "
        f"none of {NAMES} for pictures of {height} x {width}, {summary(own)}"
    )


def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the tower, down to the last slot."""
    return {name: value for name, value in read_part(config).args.items() if name not in FREE}


def summary(own: Mapping[str, Any]) -> str:
    body = own["encoder"]["init_args"]
    return f"patches of {own['patch_size']}, {body['depth']} blocks of width {body['dim']}, with its activation and eps"


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors, `visual.*`, of the tower whose model config is `write_config(config)`."""
    head = {f"visual.head.proj.{name.removeprefix('head.')}": state[name] for name in state if name.startswith("head.")}
    body = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    args = {name: value for name, value in config["init_args"].items() if name != "head"}
    plain = {**config, "init_args": {**args, "outputs": 0}}
    return head | {f"visual.trunk.{name}": tensor for name, tensor in timm_tensors.from_vitkit(body, plain).items()}
