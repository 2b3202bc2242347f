"""Hugging Face's ViT, DeiT, ViTMAE and DINOv2: their tensors by vitkit's names, and back.

Two layouts are read: that of files and of transformers 4 (`encoder.layer.{i}.attention.attention.query`), and that of
models in memory since transformers 5 (`layers.{i}.attention.q_proj`). The first is written: both versions load it.

h w the grid of N patches, P prefix tokens, D width. What has no rule keeps its name, so that
`vitkit.convert.importer.build_bundle` lists it.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from vitkit.convert import config_slots
from vitkit.convert.hf.converter import LeftOut
from vitkit.convert.hf.vit_config import ARCHITECTURES, ViTArguments, parse_vit_config, read_vit_arguments
from vitkit.convert.rules import Rule, invert_rules, rename
from vitkit.convert.timm.tensors import make_positions

# fmt: skip

ATTENTION = (
    Rule("attention.attention.query.{x}", "attn.f.q.{x}"),
    Rule("attention.attention.key.{x}", "attn.f.k.{x}"),
    Rule("attention.attention.value.{x}", "attn.f.v.{x}"),
    Rule("attention.output.dense.{x}", "attn.f.out.{x}"),
)
VIT = (
    *ATTENTION,
    Rule("layernorm_before.{x}", "attn.norm.{x}"),
    Rule("layernorm_after.{x}", "mlp.norm.{x}"),
    Rule("intermediate.dense.{x}", "mlp.f.up.{x}"),
    Rule("output.dense.{x}", "mlp.f.down.{x}"),
)
SCALED = (
    *ATTENTION,
    Rule("norm1.{x}", "attn.norm.{x}"),
    Rule("norm2.{x}", "mlp.norm.{x}"),
    Rule("layer_scale1.lambda1", "attn.scale"),
    Rule("layer_scale2.lambda1", "mlp.scale"),
)
DINO = (*SCALED, Rule("mlp.fc1.{x}", "mlp.f.up.{x}"), Rule("mlp.fc2.{x}", "mlp.f.down.{x}"))
GATED = (*SCALED, Rule("mlp.weights_in.{x}", "mlp.f.gate_up.{x}"), Rule("mlp.weights_out.{x}", "mlp.f.down.{x}"))
MEMORY = (
    Rule("attention.q_proj.{x}", "attn.f.q.{x}"),
    Rule("attention.k_proj.{x}", "attn.f.k.{x}"),
    Rule("attention.v_proj.{x}", "attn.f.v.{x}"),
    Rule("attention.o_proj.{x}", "attn.f.out.{x}"),
    Rule("mlp.gate_proj.{x}", "mlp.f.gate.{x}"),
    Rule("mlp.up_proj.{x}", "mlp.f.up.{x}"),
    Rule("mlp.down_proj.{x}", "mlp.f.down.{x}"),
)
AROUND = (
    Rule("embeddings.patch_embeddings.projection.{x}", "embed.patches.{x}"),
    Rule("layernorm.{x}", "encoder.norm.{x}"),
    Rule("decoder.decoder_embed.{x}", "decoder.embed.{x}"),
    Rule("decoder.decoder_norm.{x}", "decoder.encoder.norm.{x}"),
    Rule("decoder.decoder_pred.{x}", "decoder.pixels.{x}"),
)
STEM, DECODER_STEM = "encoder.layer.{i}.", "decoder.decoder_layers.{i}."
# transformers 5.24 writes the second of the decoder's, a slip of its renaming, and reads both.
STEMS = {STEM: "encoder.", "layers.{i}.": "encoder."} | dict.fromkeys(
    (DECODER_STEM, "decoder.decoder_encoder.layer.{i}."), "decoder.encoder."
)
TOKENS = ("embeddings.cls_token", "embeddings.distillation_token", "embeddings.register_tokens")
POSITIONS, DECODER_POSITIONS = "embeddings.position_embeddings", "decoder.decoder_pos_embed"
OURS = ("embed.", "decoder.mask", "decoder.table.")  # given by `positioned`


def to_vitkit(state: Mapping[str, Tensor], told: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of the model that `read_config(told)` is the config of.

    Raises: ValueError where the decoder has a position for CLS, which vitkit's has not.
    """
    values, name = parse_vit_config(told)
    kind, _, head, _ = ARCHITECTURES[name]
    around = (*AROUND, Rule(f"{head}.{{x}}", "head.{x}")) if head else AROUND
    state = rename(bare(state), (*around, *within((*VIT, *DINO, *GATED, *MEMORY), STEMS)))
    state = fuse(fuse(state, ("q", "k", "v"), "qkv"), ("gate", "up"), "gate_up")
    size = config_slots.compute_grid(values["image_size"], values["patch_size"])
    return decoder_tokens(tokens(state, size, 2 if kind == "deit" else 1), size)


def find_left_out(state: Mapping[str, Tensor], told: Mapping[str, Any]) -> LeftOut:
    """What `to_vitkit` of this state leaves over on purpose, and what `told` says of training."""
    names = bare(state)
    why = ARCHITECTURES[parse_vit_config(told)[1]].left_out
    found = [pattern for pattern in why if any(fnmatchcase(name, pattern) for name in names)]
    rates = [name for name in told if name.endswith(("dropout_prob", "drop_path_rate")) and told[name]]
    training = [f"{name}={told[name]} is left out: it is for training" for name in rates]
    return LeftOut(tuple(found), (*(f"{pattern} is left out: {why[pattern]}" for pattern in found), *training))


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of the folder whose config.json is `write_config(config)`.

    Raises: ValueError with everything that no class there can hold.
    """
    into = read_vit_arguments(config)
    base, head = ARCHITECTURES[into.name].base, ARCHITECTURES[into.name].head
    names = (GATED if into.trunk.act is None else DINO) if into.kind.startswith("dinov2") else VIT
    rules = (*AROUND, *within(names, {STEM: "encoder.", DECODER_STEM: "decoder.encoder."}))
    if "head.weight" in state:  # their heads have biases
        state = {"head.bias": state["head.weight"].new_zeros(len(state["head.weight"])), **state}
    theirs = rename(split_qkv(state), invert_rules((*rules, Rule(f"{head}.{{x}}", "head.{x}"))))
    theirs = {name: tensor for name, tensor in theirs.items() if not name.startswith(OURS)} | positioned(state, into)
    inner = ("embeddings.", "encoder.", "layernorm.")
    return {base + name if name.startswith(inner) else name: tensor.contiguous() for name, tensor in theirs.items()}


def bare(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what a model with a head puts in front of the names of the one below it."""
    return {re.sub(r"^(vit|deit|dinov2|dinov2_with_registers)\.", "", name): tensor for name, tensor in state.items()}


def within(rules: Iterable[Rule], stems: Mapping[str, str]) -> list[Rule]:
    """Names within a block, behind each stem."""
    rules = dict.fromkeys(rules)
    return [Rule(stem + theirs, f"{ours}blocks.{{i}}.{name}") for stem, ours in stems.items() for theirs, name in rules]


def fuse(state: Mapping[str, Tensor], ends: tuple[str, ...], whole: str) -> dict[str, Tensor]:
    """One matrix for several that read the same; its bias is zero where there is none."""
    fused = dict(state)
    for name in state:
        stem = name.removesuffix(f".{ends[0]}.weight")
        weights, biases = ([f"{stem}.{end}.{kind}" for end in ends] for kind in ("weight", "bias"))
        if stem != name and all(weight in state for weight in weights):
            zeros = [state[weight].new_zeros(len(state[weight])) for weight in weights]
            fused[f"{stem}.{whole}.weight"] = torch.cat([fused.pop(weight) for weight in weights])
            fused[f"{stem}.{whole}.bias"] = torch.cat(list(map(fused.pop, biases, zeros)))
    return fused


def split_qkv(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `fuse` for attention."""
    apart: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".attn.f.qkv." in name:
            apart |= {name.replace(".qkv.", f".{end}."): part for end, part in zip("qkv", tensor.chunk(3), strict=True)}
        else:
            apart[name] = tensor
    return apart


def tokens(state: Mapping[str, Tensor], grid: tuple[int, int], count: int) -> dict[str, Tensor]:
    """`embed.prefix` (P, D), the first `count` with their positions added; `embed.table.weight` (h, w, D)."""
    names, positions = [name for name in TOKENS if name in state], state.get(POSITIONS)
    if positions is None or len(names) < count or positions.shape[:-1] != (1, count + grid[0] * grid[1]):
        return dict(state)
    wide = torch.promote_types(positions.dtype, torch.float32)  # a sum of halves would be rounded
    prefix = torch.cat([state[name][0].to(wide) for name in names])
    prefix[:count] += positions[0, :count]
    rest = {name: tensor for name, tensor in state.items() if name not in (*names, POSITIONS)}
    return {**rest, "embed.prefix": prefix, "embed.table.weight": positions[0, count:].unflatten(0, grid)}


def decoder_tokens(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """`decoder.mask` (D), and `decoder.table.weight` (h, w, D)."""
    kept, positions = dict(state), state.get(DECODER_POSITIONS)
    if "decoder.mask_token" in kept:
        kept["decoder.mask"] = kept.pop("decoder.mask_token").flatten()
    if positions is not None and positions.shape[:-1] == (1, 1 + grid[0] * grid[1]):
        if positions[0, 0].any():
            raise ValueError(f"{DECODER_POSITIONS} must be 0 for CLS, got up to {positions[0, 0].abs().max():.3g}")
        kept["decoder.table.weight"] = kept.pop(DECODER_POSITIONS)[0, 1:].unflatten(0, grid)
    return kept


def positioned(state: Mapping[str, Tensor], into: ViTArguments) -> dict[str, Tensor]:
    """Tokens and positions: zero for the prefix, whose tokens hold the sum here, and for what is not used."""
    prefix, count = state["embed.prefix"], 2 if into.kind == "deit" else 1
    found = {TOKENS[0]: prefix[None, :1], POSITIONS: table(state, into, "table", "embed", count)}
    if into.kind == "deit":
        found[TOKENS[1]] = prefix[None, 1:]
    if into.kind == "dinov2_with_registers":
        found[TOKENS[2]] = prefix[None, 1:]
    if into.kind.startswith("dinov2"):
        found["embeddings.mask_token"] = torch.zeros_like(prefix[:1])
    if into.decoder is not None:
        found["decoder.mask_token"] = state["decoder.mask"][None, None]
        found[DECODER_POSITIONS] = table(state, into, "decoder_table", "decoder", 1)
    return found


def table(state: Mapping[str, Tensor], into: ViTArguments, name: str, where: str, zeros: int) -> Tensor:
    """Positions (1, zeros + N, D)."""
    dim = state[f"{where}.{'prefix' if where == 'embed' else 'mask'}"].shape[-1]
    held = make_positions(into.table(name), state, f"{where}.table.weight", dim, into.grid)
    return torch.cat([held.new_zeros(zeros, dim), held])[None]
