"""Hugging Face's CLIP and SigLIP: their tensors by vitkit's names, and back.

Of whole models the names have been the same always; an image tower alone had "vision_model." in front until
transformers 5.6. Which it is, is read from the names. What has no rule keeps its name, so that
`vitkit.convert.importer.build_bundle` lists it.

N patches, D width.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitkit.convert import config_slots
from vitkit.convert.hf import vit_tensors
from vitkit.convert.hf.clip_config import CLIPArguments, parse_clip_config, read_clip_arguments
from vitkit.convert.openclip.two_towers import SCALARS
from vitkit.convert.rules import Rule, invert_rules, rename

BLOCK = {
    **{f"self_attn.{name}_proj": f"attn.f.{name}" for name in "qkv"},
    "self_attn.out_proj": "attn.f.out",
    "layer_norm1": "attn.norm",
    "layer_norm2": "mlp.norm",
    "mlp.fc1": "mlp.f.up",
    "mlp.fc2": "mlp.f.down",
}
VISION, TEXT = "vision_model.", "text_model."
AROUND = (
    Rule(f"{TEXT}embeddings.token_embedding.{{x}}", "text.embed.tokens.{x}"),
    Rule(f"{TEXT}embeddings.position_embedding.weight", "text.embed.table.weight"),
    Rule(f"{TEXT}final_layer_norm.{{x}}", "text.encoder.norm.{x}"),
    Rule(f"{VISION}embeddings.patch_embedding.{{x}}", "image.embed.patches.{x}"),
    Rule(f"{VISION}pre_layrnorm.{{x}}", "image.pre_norm.{x}"),
    Rule(f"{VISION}post_layernorm.{{x}}", "image.encoder.norm.{x}"),
    Rule(f"{VISION}head.attention.out_proj.{{x}}", "image.pool.attn.out.{x}"),
    Rule(f"{VISION}head.layernorm.{{x}}", "image.pool.mlp.norm.{x}"),
    Rule(f"{VISION}head.mlp.fc1.{{x}}", "image.pool.mlp.f.up.{x}"),
    Rule(f"{VISION}head.mlp.fc2.{{x}}", "image.pool.mlp.f.down.{x}"),
)
HEADS = {
    False: (Rule("visual_projection.weight", "image.head.weight"), Rule("text_projection.weight", "text.head.weight")),
    True: (Rule(f"{TEXT}head.{{x}}", "text.head.{x}"),),
}
IN, PROBE = f"{VISION}head.attention.in_proj_", f"{VISION}head.probe"
CLS, POSITIONS = f"{VISION}embeddings.class_embedding", f"{VISION}embeddings.position_embedding.weight"


def rules(sigmoid: bool) -> tuple[Rule, ...]:
    stems = {VISION: "image.", TEXT: "text."}
    blocks = [
        Rule(f"{theirs}encoder.layers.{{i}}.{name}.{{x}}", f"{ours}encoder.blocks.{{i}}.{own}.{{x}}")
        for theirs, ours in stems.items()
        for name, own in BLOCK.items()
    ]
    return (*blocks, *AROUND, *HEADS[sigmoid])


def is_image_tower(state: Mapping[str, Tensor]) -> bool:
    """Whether there is no text tower."""
    return not any(name.startswith(TEXT) for name in nested(state))


def nested(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the names of a whole model; without the numbers of the positions, which files once held."""
    whole = any(name.startswith((VISION, TEXT)) for name in state)
    ours = ("visual_projection.", "logit_")
    held = state if whole else {n if n.startswith(ours) else VISION + n: tensor for n, tensor in state.items()}
    return {
        re.sub(r"^((vision|text)_model\.)\1+", r"\1", name): tensor
        for name, tensor in held.items()
        if not name.endswith("embeddings.position_ids")
    }


def to_vitkit(state: Mapping[str, Tensor], told: Mapping[str, Any], *, image: bool = False) -> dict[str, Tensor]:
    """The state of the model that `read_config(told, image=image)` is the config of."""
    family, vision, text, _ = parse_clip_config(told)
    held = positioned(nested(state), config_slots.compute_grid(vision["image_size"], vision["patch_size"]))
    for end in ("weight", "bias"):
        if (fused := held.pop(IN + end, None)) is not None:
            dim = len(fused) // 3
            held |= {f"image.pool.attn.q.{end}": fused[:dim], f"image.pool.attn.kv.{end}": fused[dim:]}
    if (probe := held.pop(PROBE, None)) is not None:
        held["image.pool.query"] = probe.flatten(0, 1)
    found = vit_tensors.fuse(rename(held, rules(family.sigmoid)), ("q", "k", "v"), "qkv")
    if image or text is None:
        theirs = ("text.", TEXT, "text_projection.", *SCALARS) if image else ()
        kept = {name: tensor for name, tensor in found.items() if not name.startswith(theirs)}
        return {name.removeprefix("image."): tensor for name, tensor in kept.items()}
    for theirs, ours in SCALARS.items():
        if theirs in found:
            found[ours] = found.pop(theirs).reshape(())
    return found


def positioned(held: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """CLS (1, D) with its position added, none for SigLIP (0, D); a table (h, w, D); a bias of the patches."""
    found, positions = dict(held), held.get(POSITIONS)
    count = int(CLS in held)
    if positions is not None and len(positions) == count + grid[0] * grid[1]:
        wide = found.pop(POSITIONS).to(torch.promote_types(positions.dtype, torch.float32))
        prefix = wide[:0] if not count else (found.pop(CLS) + wide[0])[None]
        found |= {"image.embed.prefix": prefix, "image.embed.table.weight": positions[count:].unflatten(0, grid)}
    if (weight := held.get(f"{VISION}embeddings.patch_embedding.weight")) is not None:
        found.setdefault(f"{VISION}embeddings.patch_embedding.bias", weight.new_zeros(len(weight)))
    return found


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of the folder whose config.json is `write_config(config)`.

    Raises: ValueError with everything that no class there can hold.
    """
    into = read_clip_arguments(config)
    held = vit_tensors.split_qkv(state)
    patches, prefix = (held.pop(f"image.embed.{name}") for name in ("patches.bias", "prefix"))
    table = held.pop("image.embed.table.weight").flatten(0, 1)
    scale, bias = held.pop("log_scale"), held.pop("bias", None)
    if into.sigmoid:
        held |= {POSITIONS: table, f"{VISION}embeddings.patch_embedding.bias": patches}
        held |= pooled(held) | {"logit_bias": scale.new_zeros(1) if bias is None else bias.reshape(1)}
    else:
        # Their patches have no bias: it moves into the positions. CLS holds the sum of its token and position here.
        held |= {POSITIONS: torch.cat([torch.zeros_like(prefix), table + patches]), CLS: prefix[0]}
    held["logit_scale"] = scale.reshape(1) if into.sigmoid else scale
    theirs = rename(headed(held, into), invert_rules(rules(into.sigmoid)))
    return {name: tensor.contiguous() for name, tensor in theirs.items()}


def pooled(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """The attention of SigLIP's pool, taken out of `held`."""
    found = {PROBE: held.pop("image.pool.query")[None]}
    for end in ("weight", "bias"):
        found[IN + end] = torch.cat([held.pop(f"image.pool.attn.{name}.{end}") for name in ("q", "kv")])
    return found


def headed(held: dict[str, Tensor], into: CLIPArguments) -> dict[str, Tensor]:
    """With the projections that they have: in CLIP two without biases, in SigLIP one with. Raises: ValueError."""
    for tower in ("text",) if into.sigmoid else ("image", "text"):
        dim, weight, bias = into.widths[tower], f"{tower}.head.weight", f"{tower}.head.bias"
        held.setdefault(weight, torch.eye(dim).to(held["logit_scale"]))
        if into.sigmoid:
            held.setdefault(bias, held[weight].new_zeros(len(held[weight])))
        elif (most := held.pop(bias, torch.zeros(1)).abs().max()) > 0:
            raise ValueError(f"{bias} must be 0 for transformers' CLIP, which has none, got up to {most:.3g}")
    return held
