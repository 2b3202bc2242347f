"""The tensors of timm's VisionTransformer under vitkit's names, and back. P prefix tokens, N = h w patches, D width.

DeiT's and DINOv2's own files have the same layout. A tensor without a rule keeps its name, so that
`vitkit.convert.importer.build_bundle` lists it.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.convert.config_slots import Part, compute_grid, read_part
from vitkit.convert.rules import Rule, compile_template, invert_rules, rename
from vitkit.convert.timm.config import PREFIX, has_swiglu, make_arguments, rename_aliases
from vitkit.nn import Learned, Sinusoidal, list_cells


def make_block_rules(blocks: str, ours: str, up: str = "up") -> tuple[Rule, ...]:
    """Return the rules for a stack of blocks: from names that start with `blocks` to names that start with `ours`."""
    names = {
        "norm1": "attn.norm",
        "attn.qkv": "attn.f.qkv",
        "attn.q_norm": "attn.f.q_norm",
        "attn.k_norm": "attn.f.k_norm",
        "attn.proj": "attn.f.out",
        "norm2": "mlp.norm",
        "mlp.fc1": f"mlp.f.{up}",
        "mlp.fc2": "mlp.f.down",
    }
    scales = [
        Rule(f"{blocks}.{{i}}.ls{number}.gamma", f"{ours}.{{i}}.{branch}.scale")
        for number, branch in ((1, "attn"), (2, "mlp"))
    ]
    rules = [Rule(f"{blocks}.{{i}}.{name}.{{x}}", f"{ours}.{{i}}.{target}.{{x}}") for name, target in names.items()]
    return (*rules, *scales)


PATCHES = Rule("patch_embed.proj.{x}", "embed.patches.{x}")
RULES = (
    PATCHES,
    Rule("norm_pre.{x}", "pre_norm.{x}"),
    Rule("norm.{x}", "encoder.norm.{x}"),
    Rule("fc_norm.{x}", "pool.norm.{x}"),
    Rule("attn_pool.latent", "pool.query"),
    Rule("attn_pool.q.{x}", "pool.attn.q.{x}"),
    Rule("attn_pool.kv.{x}", "pool.attn.kv.{x}"),
    Rule("attn_pool.proj.{x}", "pool.attn.out.{x}"),
    Rule("attn_pool.norm.{x}", "pool.mlp.norm.{x}"),
    Rule("attn_pool.mlp.fc1.{x}", "pool.mlp.f.up.{x}"),
    Rule("attn_pool.mlp.fc2.{x}", "pool.mlp.f.down.{x}"),
)
# Patterns of tensors that are dropped on purpose -> notes.
LEFT_OUT = {
    "head_dist.*": "head_dist, DeiT's head for distillation, is left out: the outputs are of head alone",
    "mask_token": "mask_token, which replaces hidden patches in the training of DINOv2, is left out",
}
# Layers with a bias here that may have none in timm; it is zero then.
BIASED = (
    *("patch_embed.proj", "blocks.{i}.attn.qkv", "blocks.{i}.attn.proj", "blocks.{i}.mlp.fc1", "blocks.{i}.mlp.fc2"),
    "head",
)


def make_rules(swiglu: bool) -> tuple[Rule, ...]:
    return (*make_block_rules("blocks", "encoder.blocks", "gate_up" if swiglu else "up"), *RULES)


def list_left_out(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return a note for each pattern of tensors that `to_vitkit` drops on purpose."""
    return tuple(note for wildcard, note in LEFT_OUT.items() if any(fnmatchcase(name, wildcard) for name in state))


def to_vitkit(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Return the state of a `vitkit.models.ViT` whose images are a grid (h, w) of patches.

    Raises: ValueError where the number of positions does not fit the grid.
    """
    tensors = rename_aliases(state)
    tensors = {name: tensors[name] for name in tensors if not any(fnmatchcase(name, left) for left in LEFT_OUT)}
    return rename(split_positions(add_zero_biases(tensors), grid), make_rules(has_swiglu(tensors)))


def split_positions(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Split positions into those of prefix tokens, which are added to `embed.prefix` (P, D), and of patches.

    Those of patches become `embed.table.weight` (h, w, D). Tokens lose their batch axis.
    """
    if "pos_embed" not in state:
        raise ValueError(f"state must be of a timm VisionTransformer with pos_embed, got names {[*state][:3]}...")
    state = {name: tensor[0] if tensor.ndim == 3 else tensor for name, tensor in state.items()}
    positions = state.pop("pos_embed")
    prefix = torch.cat([state.pop(name, positions[:0]) for name in PREFIX])
    patches = grid[0] * grid[1]
    match len(positions) - patches:
        case 0:  # no_embed_class
            pass
        case count if count == len(prefix):
            prefix = prefix + positions[:count]
        case _:
            raise ValueError(
                f"grid must have as many patches as pos_embed, got grid={grid} for {len(positions)} positions "
                f"and {len(prefix)} prefix tokens; give --size H W"
            )
    return {**state, "embed.prefix": prefix, "embed.table.weight": positions[-patches:].unflatten(0, grid)}


def add_zero_biases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add zero biases to layers of a kind of which none has a bias.

    Where some of a kind have one, the other biases are missing from the file, and nothing is added.
    """
    biases: dict[str, Tensor] = {}
    for kind in BIASED:
        weight = compile_template(f"{kind}.weight")
        names = {name.removesuffix("weight") + "bias": name for name in state if weight.fullmatch(name)}
        if not names.keys() & state.keys():
            biases |= {bias: state[name].new_zeros(len(state[name])) for bias, name in names.items()}
    return {**state, **biases}


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of timm's model with `make_arguments(config)`.

    The first prefix token becomes CLS, the others registers; none of them has a position.

    Raises: ValueError for a model that timm does not support.
    """
    timm_args, args = make_arguments(config), read_part(config).args
    dim, size = timm_args["embed_dim"], compute_grid(args["image_size"], args["patch_size"])
    positions = make_positions(read_part(args["table"]), state, "embed.table.weight", dim, size)
    tensors = {name: tensor for name, tensor in state.items() if name not in ("embed.prefix", "embed.table.weight")}
    tensors = add_zero_biases(rename(tensors, invert_rules((*make_rules(False), *make_rules(True)))))
    if timm_args["pre_norm"]:  # then timm's patches have no bias
        positions = positions + tensors.pop("patch_embed.proj.bias")
    tokens = {"cls_token": state["embed.prefix"][:1], "reg_token": state["embed.prefix"][1:], "pos_embed": positions}
    if "attn_pool.latent" in tensors:
        tokens["attn_pool.latent"] = tensors["attn_pool.latent"]
    return tensors | {name: tensor[None] for name, tensor in tokens.items() if len(tensor)}


def make_positions(
    table: Part, state: Mapping[str, Tensor], name: str, dim: int, grid: tuple[int, int]
) -> Float[Tensor, "N D"]:
    """Return the positions of a table: its parameters in the state, or the values of a table without parameters.

    Raises: ValueError for a table that is neither `Learned` nor `Sinusoidal`.
    """
    if table.kind is Learned:
        return state[name].flatten(0, 1)
    if table.kind is not Sinusoidal:
        raise ValueError(f"table must be Learned or Sinusoidal, got {table.kind.__name__}")
    like = next(iter(state.values()))
    return Sinusoidal(dim, grid, base=table.args["base"])(list_cells(grid, like.device), grid)[0].to(like.dtype)
