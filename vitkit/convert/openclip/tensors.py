"""OpenCLIP's image tower: its tensors by vitkit's names, and back.

h w the grid of N patches, D width, E embedding. A tower made of timm's ViT is read through
`vitkit.convert.timm`, and written by timm_trunk.py. What has no rule keeps its name, so that
`vitkit.convert.importer.build_bundle` lists it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitkit.convert import config_slots
from vitkit.convert.openclip.config import (
    VISION,
    normed_after,
    read_tower_arguments,
    read_trunk_facts,
    select_image_tower,
    within,
)
from vitkit.convert.openclip.text_tower import BLOCKS
from vitkit.convert.rules import Rule, invert_rules, rename
from vitkit.convert.timm import tensors as timm_tensors

RULES = (Rule("conv1.{x}", "embed.patches.{x}"), Rule("ln_pre.{x}", "pre_norm.{x}"), *BLOCKS)
AFTER = Rule("ln_post.{x}", "encoder.norm.{x}"), Rule("ln_post.{x}", "pool.norm.{x}")


def to_vitkit(state: Mapping[str, Tensor], told: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of what `read_config(state, told)` is the config of; what is not the image tower is left out."""
    vision, held = {**VISION, **told["vision_cfg"]}, select_image_tower(state)
    if vision["timm_model_name"]:
        return convert_trunk(held, told)
    held = rename(held, (*RULES, AFTER[normed_after(vision)]))
    grid = config_slots.compute_grid(vision["image_size"], vision["patch_size"])
    positions = held.get("positional_embedding")
    if positions is not None and "class_embedding" in held and len(positions) == 1 + grid[0] * grid[1]:
        wide = held.pop("positional_embedding").to(torch.promote_types(positions.dtype, torch.float32))
        held["embed.prefix"] = (held.pop("class_embedding") + wide[0])[None]
        held["embed.table.weight"] = positions[1:].unflatten(0, grid)
    if (weight := held.get("embed.patches.weight")) is not None:
        held.setdefault("embed.patches.bias", weight.new_zeros(len(weight)))
    if "proj" in held:
        held["head.weight"] = held.pop("proj").T
    return held


def convert_trunk(held: Mapping[str, Tensor], told: Mapping[str, Any]) -> dict[str, Tensor]:
    inner, size = within(held, "trunk."), read_trunk_facts(told).size
    beside = {name.replace("head.proj.", "head."): held[name] for name in held if not name.startswith("trunk.")}
    return (
        timm_tensors.to_vitkit(inner, config_slots.compute_grid(size, inner["patch_embed.proj.weight"].shape[2:]))
        | beside
    )


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors, `visual.*`, of the tower whose model config is `write_config(config)`.

    Raises: ValueError with everything that no tower there can hold.
    """
    into = read_tower_arguments(config)
    dim, held = into.trunk.dim, dict(state)
    if (bias := held.pop("head.bias", torch.zeros(1))).any():
        raise ValueError(f"head.bias must be 0 for OpenCLIP, which has none, got up to {bias.abs().max():.3g}")
    prefix = held.pop("embed.prefix")
    table = timm_tensors.make_positions(into.table, state, "embed.table.weight", dim, into.grid)
    held.pop("embed.table.weight", None)
    theirs = rename(held, invert_rules((*RULES, AFTER[into.normed_after])))
    # Their patches have no bias: it moves into the positions. CLS holds the sum of its token and position here.
    theirs["positional_embedding"] = torch.cat([torch.zeros_like(prefix), table + theirs.pop("conv1.bias")])
    theirs["class_embedding"] = prefix[0]
    theirs["proj"] = theirs.pop("head.weight").T if into.args["outputs"] else torch.eye(dim).to(prefix)
    return {f"visual.{name}": tensor.contiguous() for name, tensor in theirs.items()}
