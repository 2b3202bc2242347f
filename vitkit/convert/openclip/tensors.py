"""The tensors of OpenCLIP's image tower under vitkit's names, and back.

A tower that is a model of timm is read through `vitkit.convert.timm`, and written by timm_trunk.py. A tensor without a
rule keeps its name, so that `vitkit.convert.importer.build_bundle` lists it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitkit.convert import config_slots
from vitkit.convert.openclip.config import (
    VISION,
    has_norm_in_pool,
    read_tower_target,
    read_trunk_facts,
    select_below,
    select_image_tower,
)
from vitkit.convert.openclip.text_tower import BLOCKS
from vitkit.convert.rules import Rule, invert_rules, rename
from vitkit.convert.timm import tensors as timm_tensors

RULES = (Rule("conv1.{x}", "embed.patches.{x}"), Rule("ln_pre.{x}", "pre_norm.{x}"), *BLOCKS)
# The rule of the last norm, and the rule where it is in the pool.
LAST_NORM = Rule("ln_post.{x}", "encoder.norm.{x}"), Rule("ln_post.{x}", "pool.norm.{x}")


def to_vitkit(state: Mapping[str, Tensor], openclip_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of the ViT whose config is `read_config(state, openclip_config)`; other towers are dropped."""
    vision, tensors = {**VISION, **openclip_config["vision_cfg"]}, select_image_tower(state)
    if vision["timm_model_name"]:
        return convert_trunk(tensors, openclip_config)
    tensors = rename(tensors, (*RULES, LAST_NORM[has_norm_in_pool(vision)]))
    grid = config_slots.compute_grid(vision["image_size"], vision["patch_size"])
    positions = tensors.get("positional_embedding")
    if positions is not None and "class_embedding" in tensors and len(positions) == 1 + grid[0] * grid[1]:
        wide = tensors.pop("positional_embedding").to(torch.promote_types(positions.dtype, torch.float32))
        tensors["embed.prefix"] = (tensors.pop("class_embedding") + wide[0])[None]
        tensors["embed.table.weight"] = positions[1:].unflatten(0, grid)
    if (weight := tensors.get("embed.patches.weight")) is not None:
        tensors.setdefault("embed.patches.bias", weight.new_zeros(len(weight)))
    if "proj" in tensors:
        tensors["head.weight"] = tensors.pop("proj").T
    return tensors


def convert_trunk(state: Mapping[str, Tensor], openclip_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert an image tower that is a model of timm, with its projection."""
    trunk, size = select_below(state, "trunk."), read_trunk_facts(openclip_config).size
    head = {name.replace("head.proj.", "head."): state[name] for name in state if not name.startswith("trunk.")}
    grid = config_slots.compute_grid(size, trunk["patch_embed.proj.weight"].shape[2:])
    return timm_tensors.to_vitkit(trunk, grid) | head


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors, `visual.*`, of the tower whose model_cfg is `write_config(config)`.

    Raises: ValueError that lists every setting that no image tower of OpenCLIP supports.
    """
    target = read_tower_target(config)
    dim, tensors = target.trunk.dim, dict(state)
    if (bias := tensors.pop("head.bias", torch.zeros(1))).any():
        raise ValueError(f"head.bias must be 0 for OpenCLIP, which has none, got up to {bias.abs().max():.3g}")
    prefix = tensors.pop("embed.prefix")
    positions = timm_tensors.make_positions(target.table, state, "embed.table.weight", dim, target.grid)
    tensors.pop("embed.table.weight", None)
    tensors = rename(tensors, invert_rules((*RULES, LAST_NORM[target.norm_in_pool])))
    # OpenCLIP's patches have no bias, so it moves into the positions. CLS holds the sum of its token and position here.
    tensors["positional_embedding"] = torch.cat([torch.zeros_like(prefix), positions + tensors.pop("conv1.bias")])
    tensors["class_embedding"] = prefix[0]
    tensors["proj"] = tensors.pop("head.weight").T if target.args["outputs"] else torch.eye(dim).to(prefix)
    return {f"visual.{name}": tensor.contiguous() for name, tensor in tensors.items()}
