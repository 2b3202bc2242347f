"""A ViT as the image tower of an OpenCLIP model whose model_cfg gives it as the name of a timm model (SigLIP)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitkit.convert.config_slots import read_part
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors

NAMES = "vit_*siglip*"
# Arguments that may differ: OpenCLIP has its own projection, and no value for the resampling of positions.
FREE = ("outputs", "head", "init", "table")


def write_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model_cfg with the image tower alone.

    Raises: ValueError for a tower without a name in timm.
    """
    args = read_part(config).args
    outputs = args["outputs"]
    vision = {
        "timm_model_name": find_timm_name(config),
        "timm_model_pretrained": False,
        "timm_pool": "map",
        "timm_proj": "linear" if outputs else "none",
        "timm_proj_bias": bool(outputs and read_part(args["head"]).args["bias"]),
        "image_size": [*args["image_size"]],
    }
    return {"embed_dim": outputs or read_part(args["encoder"]).args["dim"], "vision_cfg": vision}


def find_timm_name(config: Mapping[str, Any]) -> str:
    """Return the name of the timm model with the architecture of a ViT. Raises: ValueError if there is none."""
    import timm

    args = select_tower_args(config)
    height, width = args["image_size"]
    for name in timm.list_models(NAMES):
        pretrained_cfg = timm.get_pretrained_cfg(name)
        if pretrained_cfg is not None and pretrained_cfg.input_size[1:] != (height, width):
            continue
        with torch.device("meta"):
            model = timm.create_model(name, num_classes=0)
        if model.global_pool != "map":
            continue
        if select_tower_args(timm_config.read_config(model.state_dict(), timm_config.read_facts(model))) == args:
            return name
    raise ValueError(
        f"an image tower with attention pooling must equal a timm model {NAMES}, since OpenCLIP refers to it by name, "
        f"got images of {height} x {width}, {format_sizes(args)}: no such model has these sizes, act and eps"
    )


def select_tower_args(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a ViT that must equal those of the timm model."""
    return {name: value for name, value in read_part(config).args.items() if name not in FREE}


def format_sizes(args: Mapping[str, Any]) -> str:
    encoder = args["encoder"]["init_args"]
    return f"patches of {args['patch_size']}, {encoder['depth']} blocks of width {encoder['dim']}"


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors, `visual.*`, of the tower whose model_cfg is `write_config(config)`."""
    head = {f"visual.head.proj.{name.removeprefix('head.')}": state[name] for name in state if name.startswith("head.")}
    rest = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    args = {name: value for name, value in config["init_args"].items() if name != "head"}
    headless = {**config, "init_args": {**args, "outputs": 0}}
    return head | {f"visual.trunk.{name}": tensor for name, tensor in timm_tensors.from_vitkit(rest, headless).items()}
