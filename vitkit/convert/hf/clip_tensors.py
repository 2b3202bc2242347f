"""The tensors of Hugging Face's CLIP and SigLIP under vitkit's names, and back.

Models with both towers have always had the same names. The names of an image tower alone started with "vision_model."
until transformers 5.6; both layouts are read. A tensor without a rule keeps its name, so that
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
from vitkit.convert.hf.clip_config import CLIPTarget, choose_clip_target, parse_clip_config
from vitkit.convert.openclip.two_towers import SCALARS
from vitkit.convert.rules import Rule, invert_rules, rename

# Names in a block of transformers -> names in a block of vitkit.
BLOCK = {
    **{f"self_attn.{name}_proj": f"attn.f.{name}" for name in "qkv"},
    "self_attn.out_proj": "attn.f.out",
    "layer_norm1": "attn.norm",
    "layer_norm2": "mlp.norm",
    "mlp.fc1": "mlp.f.up",
    "mlp.fc2": "mlp.f.down",
}
VISION_MODEL, TEXT_MODEL = "vision_model.", "text_model."
# Rules for the tensors outside the blocks.
OUTER = (
    Rule(f"{TEXT_MODEL}embeddings.token_embedding.{{x}}", "text.embed.tokens.{x}"),
    Rule(f"{TEXT_MODEL}embeddings.position_embedding.weight", "text.embed.table.weight"),
    Rule(f"{TEXT_MODEL}final_layer_norm.{{x}}", "text.encoder.norm.{x}"),
    Rule(f"{VISION_MODEL}embeddings.patch_embedding.{{x}}", "image.embed.patches.{x}"),
    Rule(f"{VISION_MODEL}pre_layrnorm.{{x}}", "image.pre_norm.{x}"),
    Rule(f"{VISION_MODEL}post_layernorm.{{x}}", "image.encoder.norm.{x}"),
    Rule(f"{VISION_MODEL}head.attention.out_proj.{{x}}", "image.pool.attn.out.{x}"),
    Rule(f"{VISION_MODEL}head.layernorm.{{x}}", "image.pool.mlp.norm.{x}"),
    Rule(f"{VISION_MODEL}head.mlp.fc1.{{x}}", "image.pool.mlp.f.up.{x}"),
    Rule(f"{VISION_MODEL}head.mlp.fc2.{{x}}", "image.pool.mlp.f.down.{x}"),
)
# Rules for the projections: of CLIP, and of SigLIP (True).
HEADS = {
    False: (Rule("visual_projection.weight", "image.head.weight"), Rule("text_projection.weight", "text.head.weight")),
    True: (Rule(f"{TEXT_MODEL}head.{{x}}", "text.head.{x}"),),
}
POOL_QKV, PROBE = f"{VISION_MODEL}head.attention.in_proj_", f"{VISION_MODEL}head.probe"
CLS, POSITIONS = f"{VISION_MODEL}embeddings.class_embedding", f"{VISION_MODEL}embeddings.position_embedding.weight"


def make_rules(sigmoid: bool) -> tuple[Rule, ...]:
    stems = {VISION_MODEL: "image.", TEXT_MODEL: "text."}
    blocks = [
        Rule(f"{theirs}encoder.layers.{{i}}.{name}.{{x}}", f"{ours}encoder.blocks.{{i}}.{target}.{{x}}")
        for theirs, ours in stems.items()
        for name, target in BLOCK.items()
    ]
    return (*blocks, *OUTER, *HEADS[sigmoid])


def is_image_tower(state: Mapping[str, Tensor]) -> bool:
    """Return whether there is no text tower."""
    return not any(name.startswith(TEXT_MODEL) for name in normalize_names(state))


def normalize_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names of a model with both towers, without the position_ids of old files."""
    if not any(name.startswith((VISION_MODEL, TEXT_MODEL)) for name in state):
        outside = ("visual_projection.", "logit_")
        state = {name if name.startswith(outside) else VISION_MODEL + name: tensor for name, tensor in state.items()}
    return {
        re.sub(r"^((vision|text)_model\.)\1+", r"\1", name): tensor
        for name, tensor in state.items()
        if not name.endswith("embeddings.position_ids")
    }


def to_vitkit(
    state: Mapping[str, Tensor], hf_config: Mapping[str, Any], *, image_only: bool = False
) -> dict[str, Tensor]:
    """Return the state of the model whose config is `read_config(hf_config, image_only=image_only)`."""
    family, vision, text, _ = parse_clip_config(hf_config)
    grid = config_slots.compute_grid(vision["image_size"], vision["patch_size"])
    tensors = convert_embeddings(normalize_names(state), grid)
    for end in ("weight", "bias"):
        if (qkv := tensors.pop(POOL_QKV + end, None)) is not None:
            dim = len(qkv) // 3
            tensors |= {f"image.pool.attn.q.{end}": qkv[:dim], f"image.pool.attn.kv.{end}": qkv[dim:]}
    if (probe := tensors.pop(PROBE, None)) is not None:
        tensors["image.pool.query"] = probe.flatten(0, 1)
    tensors = vit_tensors.fuse_layers(rename(tensors, make_rules(family.sigmoid)), ("q", "k", "v"), "qkv")
    if image_only or text is None:
        others = ("text.", TEXT_MODEL, "text_projection.", *SCALARS) if image_only else ()
        return {name.removeprefix("image."): tensors[name] for name in tensors if not name.startswith(others)}
    for theirs, ours in SCALARS.items():
        if theirs in tensors:
            tensors[ours] = tensors.pop(theirs).reshape(())
    return tensors


def convert_embeddings(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Convert CLS and positions to `embed.prefix`, (1, D) or (0, D) without CLS, and `embed.table.weight` (h, w, D).

    Patches without a bias get one of zeros.
    """
    tensors, positions = dict(state), state.get(POSITIONS)
    count = int(CLS in state)
    if positions is not None and len(positions) == count + grid[0] * grid[1]:
        wide = tensors.pop(POSITIONS).to(torch.promote_types(positions.dtype, torch.float32))
        prefix = wide[:0] if not count else (tensors.pop(CLS) + wide[0])[None]
        tensors |= {"image.embed.prefix": prefix, "image.embed.table.weight": positions[count:].unflatten(0, grid)}
    if (weight := state.get(f"{VISION_MODEL}embeddings.patch_embedding.weight")) is not None:
        tensors.setdefault(f"{VISION_MODEL}embeddings.patch_embedding.bias", weight.new_zeros(len(weight)))
    return tensors


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the folder whose config.json is `write_config(config)`.

    Raises: ValueError that lists every setting that no class of transformers supports.
    """
    target = choose_clip_target(config)
    tensors = vit_tensors.split_qkv(state)
    patch_bias, prefix = (tensors.pop(f"image.embed.{name}") for name in ("patches.bias", "prefix"))
    positions = tensors.pop("image.embed.table.weight").flatten(0, 1)
    scale, bias = tensors.pop("log_scale"), tensors.pop("bias", None)
    if target.sigmoid:
        tensors |= {POSITIONS: positions, f"{VISION_MODEL}embeddings.patch_embedding.bias": patch_bias}
        tensors |= pop_pool_attention(tensors) | {"logit_bias": scale.new_zeros(1) if bias is None else bias.reshape(1)}
    else:
        # CLIP's patches have no bias, so it moves into the positions. CLS holds the sum of its token and position here.
        tensors |= {POSITIONS: torch.cat([torch.zeros_like(prefix), positions + patch_bias]), CLS: prefix[0]}
    tensors["logit_scale"] = scale.reshape(1) if target.sigmoid else scale
    tensors = rename(add_projections(tensors, target), invert_rules(make_rules(target.sigmoid)))
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def pop_pool_attention(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the attention of SigLIP's pool from `tensors`, and return it under the names of transformers."""
    attention = {PROBE: tensors.pop("image.pool.query")[None]}
    for end in ("weight", "bias"):
        attention[POOL_QKV + end] = torch.cat([tensors.pop(f"image.pool.attn.{name}.{end}") for name in ("q", "kv")])
    return attention


def add_projections(tensors: dict[str, Tensor], target: CLIPTarget) -> dict[str, Tensor]:
    """Add the projections that the class has: CLIP two without biases, SigLIP one with a bias.

    Raises: ValueError for a bias other than 0, as CLIP has none.
    """
    for tower in ("text",) if target.sigmoid else ("image", "text"):
        dim, weight, bias = target.widths[tower], f"{tower}.head.weight", f"{tower}.head.bias"
        tensors.setdefault(weight, torch.eye(dim).to(tensors["logit_scale"]))
        if target.sigmoid:
            tensors.setdefault(bias, tensors[weight].new_zeros(len(tensors[weight])))
        elif (most := tensors.pop(bias, torch.zeros(1)).abs().max()) > 0:
            raise ValueError(f"{bias} must be 0 for transformers' CLIP, which has none, got up to {most:.3g}")
    return tensors
