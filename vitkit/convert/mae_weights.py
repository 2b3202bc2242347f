"""Files of https://github.com/facebookresearch/mae: whole models, encoders alone, and fine-tuned classifiers.

N = h w patches, D width of the encoder, d of the decoder. Encoders and classifiers have timm's layout.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.convert.config_slots import (
    Part,
    Trunk,
    compute_grid,
    list_failures,
    read_part,
    read_trunk,
    refuse_problems,
)
from vitkit.convert.rules import Rule, invert_rules, rename
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.convert.timm.config import Facts, make_table_config, read_encoder
from vitkit.models import MAE, ViT
from vitkit.nn import First, Learned, Mean, Sinusoidal

# Names that every whole model has. One is not enough: DINOv2's files have a mask_token too.
FULL = (
    *("patch_embed.proj.weight", "cls_token", "pos_embed", "mask_token"),
    *("decoder_embed.weight", "decoder_pos_embed", "decoder_pred.weight"),
)
RULES = (
    *timm_tensors.make_block_rules("blocks", "encoder.blocks"),
    *timm_tensors.make_block_rules("decoder_blocks", "decoder.encoder.blocks"),
    Rule("patch_embed.proj.{x}", "embed.patches.{x}"),
    Rule("norm.{x}", "encoder.norm.{x}"),
    Rule("decoder_norm.{x}", "decoder.encoder.norm.{x}"),
    Rule("decoder_embed.{x}", "decoder.embed.{x}"),
    Rule("decoder_pred.{x}", "decoder.pixels.{x}"),
    Rule("mask_token", "decoder.mask"),
    Rule("cls_token", "embed.prefix"),
    Rule("pos_embed", "embed.table.weight"),
    Rule("decoder_pos_embed", "decoder.table.weight"),
)
BATCHED = ("cls_token", "pos_embed", "decoder_pos_embed")
EPS = 1e-6  # of every norm in models_mae.py and models_vit.py


def is_full(state: Mapping[str, Tensor]) -> bool:
    """Return whether a file holds the decoder as well."""
    return state.keys() >= {*FULL}


def read_config(
    state: Mapping[str, Tensor], facts: Facts, decoder_heads: int = 16, *, norm_pix: bool | None = None
) -> dict[str, Any]:
    """Return the config of a `vitkit.models.MAE` for a whole model, else of a ViT; an encoder alone gets a mean pool.

    Args:
        facts: their `pool` counts only for a classifier.
        decoder_heads: 16 in all published models.
        norm_pix: whether the decoder predicts normalised patches, which no tensor shows.
    """
    if not is_full(state):
        has_mean_pool = "fc_norm.weight" in state or "head.weight" not in state
        return timm_config.read_config(state, facts._replace(pool="avg") if has_mean_pool else facts)
    if norm_pix is None:
        raise ValueError("norm_pix must be given for a model with its decoder, got norm_pix=None")
    vit_args = timm_config.read_config(state, facts._replace(pool="token"))["init_args"]
    decoder_state = {
        name.removeprefix("decoder_"): tensor for name, tensor in state.items() if name.startswith("decoder_")
    }
    if "blocks.0.mlp.fc2.weight" not in decoder_state or (dim := len(state["decoder_embed.weight"])) % decoder_heads:
        raise ValueError(f"decoder must have blocks of a width that heads divide, got decoder_heads={decoder_heads}")
    shared = ("encoder", "image_size", "patch_size", "channels", "prefix", "table")
    decoder = read_encoder(decoder_state, facts._replace(heads=decoder_heads), dim)
    arguments = {name: vit_args[name] for name in shared}
    arguments |= {"decoder": decoder, "decoder_table": make_table_config(facts)}
    return {"class_path": "vitkit.models.MAE", "init_args": arguments | {"norm_pix": norm_pix}}


def to_vitkit(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Convert to the state of a `vitkit.models.MAE` for a grid (h, w) of patches; of a ViT without a decoder.

    Raises: ValueError for positions of another grid, and for a position of the decoder's CLS token.
    """
    if not is_full(state):
        return timm_tensors.to_vitkit(state, grid)
    tensors = {name: tensor.flatten(0, -2) if name in BATCHED else tensor for name, tensor in state.items()}
    positions, decoder_positions = tensors["pos_embed"], tensors["decoder_pos_embed"]
    if {len(positions), len(decoder_positions)} != {1 + grid[0] * grid[1]}:
        raise ValueError(
            f"grid must have as many patches as the positions, less that of CLS, got grid={grid} for "
            f"{len(positions)} and {len(decoder_positions)} positions; give --size H W"
        )
    if decoder_positions[0].any():
        raise ValueError("decoder_pos_embed must be zero at the CLS token, which has no position here, got another row")
    tensors |= {"cls_token": tensors["cls_token"] + positions[:1], "mask_token": tensors["mask_token"].flatten()}
    tensors["pos_embed"] = positions[1:].unflatten(0, grid)
    tensors["decoder_pos_embed"] = decoder_positions[1:].unflatten(0, grid)
    return rename(tensors, RULES)


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert an MAE to the state of models_mae.py's model, a ViT to models_vit.py's; CLS has a position of zeros.

    Raises: ValueError with all rules of the model there that are broken.
    """
    model = check_mae_config(config)
    args = model.args
    if model.kind is ViT:
        theirs = timm_tensors.from_vitkit(state, config)
        return theirs | {"pos_embed": prepend_zeros(theirs["pos_embed"][0])}
    body, decoder = read_trunk(args["encoder"]), read_trunk(args["decoder"])
    size = compute_grid(args["image_size"], args["patch_size"])
    tables = {"embed.table.weight": (args["table"], body), "decoder.table.weight": (args["decoder_table"], decoder)}
    positions = {
        name: prepend_zeros(timm_tensors.make_positions(read_part(table), state, name, trunk.dim, size))
        for name, (table, trunk) in tables.items()
    }
    tokens = {"embed.prefix": state["embed.prefix"][None], "decoder.mask": state["decoder.mask"][None, None]}
    return rename({**state, **positions, **tokens}, invert_rules(RULES))


def check_mae_config(config: Mapping[str, Any]) -> Part:
    """Return the model of a config. Raises: ValueError with all rules of the model there that are broken."""
    model = read_part(config)
    refuse_problems("this model in MAE's own code", list_mae_problems(model.kind, model.args))
    if model.kind is ViT:
        timm_config.make_arguments(config)
    return model


def prepend_zeros(rows: Tensor) -> Tensor:
    """Prepend a row: (N, d) -> (1, 1 + N, d)."""
    return torch.cat([torch.zeros_like(rows[:1]), rows])[None]


def list_mae_problems(kind: object, args: Mapping[str, Any]) -> list[str]:
    if kind is ViT:
        tables, stacks = ("table",), {"encoder": read_trunk(args["encoder"])}
        readout_rules = list_readout_problems(args, stacks["encoder"])
    elif kind is MAE:
        tables, stacks = ("table", "decoder_table"), {name: read_trunk(args[name]) for name in ("encoder", "decoder")}
        readout_rules = [f"{name} must have a final norm" for name, stack in stacks.items() if not stack.final_norm]
    else:
        return ["model must be a vitkit.models.MAE or ViT"]
    rules = [
        f"{name}: {text}" for name, stack in stacks.items() for text in (*stack.problems, *list_stack_problems(stack))
    ]
    kinds = {name: read_part(args[name]).kind for name in tables}
    rules += [f"{name} must be Learned or Sinusoidal" for name in tables if kinds[name] not in (Learned, Sinusoidal)]
    return [*rules, *readout_rules, *([] if args["prefix"] == 1 else ["prefix must be 1"])]


def list_stack_problems(stack: Trunk) -> list[str]:
    """Return the rules of the blocks in MAE's code that are broken."""
    return list_failures(
        {
            "mlp must be MLP with GELU": stack.act == read_part(nn.GELU),
            "residual must be without a scale": stack.scale is None,
            f"norms must have eps {EPS}": stack.eps == EPS,
        }
    )


def list_readout_problems(args: Mapping[str, Any], stack: Trunk) -> list[str]:
    """Return the rules that are broken: models_vit.py pools CLS after the final norm, or norms the mean."""
    pool, pre_norm = read_part(args["pool"]), read_part(args["pre_norm"])
    has_norm = pool.kind is Mean and read_part(pool.args["norm"]).kind is not nn.Identity
    supported = pool.kind is First or has_norm or (pool.kind is Mean and not args["outputs"])
    return list_failures(
        {
            "pre_norm must be none": pre_norm.kind is nn.Identity,
            "pool must be First, or Mean with a norm": supported,
            "encoder must have a final norm exactly where the pool has none": (
                not supported or stack.final_norm != has_norm
            ),
        }
    )
