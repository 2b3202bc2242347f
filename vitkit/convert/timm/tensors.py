"""timm's VisionTransformer: its state by vitkit's names, and back. P prefix tokens, N = h w patches, D width.

Also DeiT's and DINOv2's own files, which share the layout. What has no rule keeps its name, so that
`vitkit.convert.importer.built` lists it.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.convert.config_slots import Part, grid, part
from vitkit.convert.rules import Rule, inverse, pattern, rename
from vitkit.convert.timm.config import PREFIX, aliased, arguments, gated
from vitkit.nn import Learned, Sinusoidal, cells

# fmt: skip


def make_block_rules(blocks: str, ours: str, up: str = "up") -> tuple[Rule, ...]:
    """The rules for a stack of blocks of these names."""
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
    rules = [Rule(f"{blocks}.{{i}}.{theirs}.{{x}}", f"{ours}.{{i}}.{mine}.{{x}}") for theirs, mine in names.items()]
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
LEFT_OUT = {
    "head_dist.*": "head_dist, DeiT's head for distillation, is left out: the outputs are those of head alone",
    "mask_token": "mask_token, which stands for hidden patches when DINOv2 trains, is left out",
}
# Layers that some files have without a bias, which then is zero.
BIASED = (
    *("patch_embed.proj", "blocks.{i}.attn.qkv", "blocks.{i}.attn.proj", "blocks.{i}.mlp.fc1", "blocks.{i}.mlp.fc2"),
    "head",
)


def rules(gated: bool) -> tuple[Rule, ...]:
    return (*make_block_rules("blocks", "encoder.blocks", "gate_up" if gated else "up"), *RULES)


def list_left_out(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """A line for each part of the file that `to_vitkit` drops on purpose."""
    return tuple(note for wild, note in LEFT_OUT.items() if any(fnmatchcase(name, wild) for name in state))


def to_vitkit(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """The state of a `vitkit.models.ViT` whose image is a grid (h, w) of patches.

    Raises: ValueError where the positions are not those of such a grid.
    """
    kept = {name: tensor for name, tensor in aliased(state).items() if not any(fnmatchcase(name, w) for w in LEFT_OUT)}
    return rename(reshape(with_biases(kept), grid), rules(gated(kept)))


def reshape(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Tokens lose their batch axis: `embed.prefix` (P, D), its positions added; `embed.table.weight` (h, w, D)."""
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


def with_biases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros for the layers that have no bias anywhere; where some of a kind have one, the others lack theirs."""
    added: dict[str, Tensor] = {}
    for kind in BIASED:
        weight = pattern(f"{kind}.weight")
        names = {name.removesuffix("weight") + "bias": name for name in state if weight.fullmatch(name)}
        if not names.keys() & state.keys():
            added |= {bias: state[name].new_zeros(len(state[name])) for bias, name in names.items()}
    return {**state, **added}


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of what `arguments(config)` builds: CLS, then registers, none of them with a position.

    Raises: ValueError for a model that timm cannot hold.
    """
    theirs = arguments(config)
    own = part(config).args
    table = rows(
        part(own["table"]), state, "embed.table.weight", theirs["embed_dim"], grid(own["image_size"], own["patch_size"])
    )
    kept = {name: tensor for name, tensor in state.items() if name not in ("embed.prefix", "embed.table.weight")}
    found = with_biases(rename(kept, inverse((*rules(False), *rules(True)))))
    if theirs["pre_norm"]:  # there the patches have no bias
        table = table + found.pop("patch_embed.proj.bias")
    tokens = {"cls_token": state["embed.prefix"][:1], "reg_token": state["embed.prefix"][1:], "pos_embed": table}
    if "attn_pool.latent" in found:
        tokens["attn_pool.latent"] = found["attn_pool.latent"]
    return found | {name: tensor[None] for name, tensor in tokens.items() if len(tensor)}


def rows(table: Part, state: Mapping[str, Tensor], name: str, dim: int, grid: tuple[int, int]) -> Float[Tensor, "N D"]:
    """A table of positions: as the state holds it, or made where it has no parameters.

    Raises: ValueError for a table that is neither `Learned` nor `Sinusoidal`.
    """
    if table.kind is Learned:
        return state[name].flatten(0, 1)
    if table.kind is not Sinusoidal:
        raise ValueError(f"table must be Learned or Sinusoidal, got {table.kind.__name__}")
    like = next(iter(state.values()))
    return Sinusoidal(dim, grid, base=table.args["base"])(cells(grid, like.device), grid)[0].to(like.dtype)
