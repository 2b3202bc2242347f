"""The tensors of Hugging Face's ViT, DeiT, ViTMAE and DINOv2 under vitkit's names, and back.

Two layouts are read: that of files and of transformers 4 (`encoder.layer.{i}.attention.attention.query`), and that of
models in memory since transformers 5 (`layers.{i}.attention.q_proj`). The first is written: both versions load it.

h w the grid of N patches, P prefix tokens, D width. A tensor without a rule keeps its name, so that
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
from vitkit.convert.hf.vit_config import ARCHITECTURES, ViTTarget, choose_vit_target, parse_vit_config
from vitkit.convert.rules import Rule, invert_rules, rename
from vitkit.convert.timm.tensors import make_positions

# Rules for the tensors of one block; MEMORY is the layout of models in memory.
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
# Rules for the tensors outside the blocks.
OUTER = (
    Rule("embeddings.patch_embeddings.projection.{x}", "embed.patches.{x}"),
    Rule("layernorm.{x}", "encoder.norm.{x}"),
    Rule("decoder.decoder_embed.{x}", "decoder.embed.{x}"),
    Rule("decoder.decoder_norm.{x}", "decoder.encoder.norm.{x}"),
    Rule("decoder.decoder_pred.{x}", "decoder.pixels.{x}"),
)
STEM, DECODER_STEM = "encoder.layer.{i}.", "decoder.decoder_layers.{i}."
# Prefixes of the names of a block -> those of vitkit. transformers 5.24 writes the second one of the decoder, a slip of
# its renaming, and reads both.
STEMS = {STEM: "encoder.", "layers.{i}.": "encoder."} | dict.fromkeys(
    (DECODER_STEM, "decoder.decoder_encoder.layer.{i}."), "decoder.encoder."
)
TOKENS = ("embeddings.cls_token", "embeddings.distillation_token", "embeddings.register_tokens")
POSITIONS, DECODER_POSITIONS = "embeddings.position_embeddings", "decoder.decoder_pos_embed"
TOKEN_NAMES = ("embed.", "decoder.mask", "decoder.table.")  # of vitkit, replaced by `make_token_tensors`


def to_vitkit(state: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of the model whose config is `read_config(hf_config)`.

    Raises: ValueError where the decoder has a position for CLS, which vitkit's has not.
    """
    values, name = parse_vit_config(hf_config)
    kind, _, head, _ = ARCHITECTURES[name]
    outer = (*OUTER, Rule(f"{head}.{{x}}", "head.{x}")) if head else OUTER
    state = rename(strip_base(state), (*outer, *expand_rules((*VIT, *DINO, *GATED, *MEMORY), STEMS)))
    state = fuse_layers(fuse_layers(state, ("q", "k", "v"), "qkv"), ("gate", "up"), "gate_up")
    size = config_slots.compute_grid(values["image_size"], values["patch_size"])
    return convert_decoder_tokens(convert_tokens(state, size, 2 if kind == "deit" else 1), size)


def find_left_out(state: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> LeftOut:
    """Return the tensors that a converted model drops on purpose, with notes on them and on values for training."""
    names = strip_base(state)
    reasons = ARCHITECTURES[parse_vit_config(hf_config)[1]].left_out
    patterns = [pattern for pattern in reasons if any(fnmatchcase(name, pattern) for name in names)]
    rates = [name for name in hf_config if name.endswith(("dropout_prob", "drop_path_rate")) and hf_config[name]]
    notes = [f"{pattern} is left out: {reasons[pattern]}" for pattern in patterns]
    notes += [f"{name}={hf_config[name]} is left out: it is for training" for name in rates]
    return LeftOut(tuple(patterns), tuple(notes))


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the folder whose config.json is `write_config(config)`.

    Raises: ValueError that lists every setting that no class of transformers supports.
    """
    target = choose_vit_target(config)
    base, head = ARCHITECTURES[target.name].base, ARCHITECTURES[target.name].head
    block = (GATED if target.trunk.act is None else DINO) if target.kind.startswith("dinov2") else VIT
    rules = (*OUTER, *expand_rules(block, {STEM: "encoder.", DECODER_STEM: "decoder.encoder."}))
    if "head.weight" in state:  # heads of transformers have biases
        state = {"head.bias": state["head.weight"].new_zeros(len(state["head.weight"])), **state}
    tensors = rename(split_qkv(state), invert_rules((*rules, Rule(f"{head}.{{x}}", "head.{x}"))))
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(TOKEN_NAMES)}
    tensors |= make_token_tensors(state, target)
    inner = ("embeddings.", "encoder.", "layernorm.")
    return {base + name if name.startswith(inner) else name: tensor.contiguous() for name, tensor in tensors.items()}


def strip_base(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Strip the prefix that a model with a head puts before the names of the model inside it."""
    return {re.sub(r"^(vit|deit|dinov2|dinov2_with_registers)\.", "", name): tensor for name, tensor in state.items()}


def expand_rules(rules: Iterable[Rule], stems: Mapping[str, str]) -> list[Rule]:
    """Return the rules of a block for each prefix of blocks."""
    rules = dict.fromkeys(rules)
    return [Rule(stem + theirs, f"{ours}blocks.{{i}}.{name}") for stem, ours in stems.items() for theirs, name in rules]


def fuse_layers(
    state: Mapping[str, Tensor], ends: tuple[str, ...], whole: str, *, bias: bool = True
) -> dict[str, Tensor]:
    """Fuse linear layers with the same input into one.

    Args:
        ends: the last part of their names; whole: the last part of the new name.
        bias: whether the new layer has a bias, with zeros for missing ones.
    """
    fused = dict(state)
    for name in state:
        stem = name.removesuffix(f".{ends[0]}.weight")
        weights, biases = ([f"{stem}.{end}.{kind}" for end in ends] for kind in ("weight", "bias"))
        if stem != name and all(weight in state for weight in weights):
            zeros = [state[weight].new_zeros(len(state[weight])) for weight in weights]
            fused[f"{stem}.{whole}.weight"] = torch.cat([fused.pop(weight) for weight in weights])
            if bias:
                fused[f"{stem}.{whole}.bias"] = torch.cat(list(map(fused.pop, biases, zeros)))
    return fused


def split_qkv(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `fuse_layers` for attention."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".attn.f.qkv." in name:
            chunks = zip("qkv", tensor.chunk(3), strict=True)
            tensors |= {name.replace(".qkv.", f".{end}."): chunk for end, chunk in chunks}
        else:
            tensors[name] = tensor
    return tensors


def convert_tokens(state: Mapping[str, Tensor], grid: tuple[int, int], count: int) -> dict[str, Tensor]:
    """Convert tokens and positions to `embed.prefix` (P, D) and `embed.table.weight` (h, w, D).

    Args: count: prefix tokens that have a position, which is added to them.
    """
    names, positions = [name for name in TOKENS if name in state], state.get(POSITIONS)
    if positions is None or len(names) < count or positions.shape[:-1] != (1, count + grid[0] * grid[1]):
        return dict(state)
    wide = torch.promote_types(positions.dtype, torch.float32)  # a sum in half precision would be rounded
    prefix = torch.cat([state[name][0].to(wide) for name in names])
    prefix[:count] += positions[0, :count]
    rest = {name: tensor for name, tensor in state.items() if name not in (*names, POSITIONS)}
    return {**rest, "embed.prefix": prefix, "embed.table.weight": positions[0, count:].unflatten(0, grid)}


def convert_decoder_tokens(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Convert mask token and positions of a decoder to `decoder.mask` (D) and `decoder.table.weight` (h, w, D)."""
    tensors, positions = dict(state), state.get(DECODER_POSITIONS)
    if "decoder.mask_token" in tensors:
        tensors["decoder.mask"] = tensors.pop("decoder.mask_token").flatten()
    if positions is not None and positions.shape[:-1] == (1, 1 + grid[0] * grid[1]):
        if positions[0, 0].any():
            raise ValueError(f"{DECODER_POSITIONS} must be 0 for CLS, got up to {positions[0, 0].abs().max():.3g}")
        tensors["decoder.table.weight"] = tensors.pop(DECODER_POSITIONS)[0, 1:].unflatten(0, grid)
    return tensors


def make_token_tensors(state: Mapping[str, Tensor], target: ViTTarget) -> dict[str, Tensor]:
    """Return tokens and positions under the names of transformers.

    Positions of prefix tokens are zero, because the tokens hold the sum here; so is DINOv2's unused mask token.
    """
    prefix, count = state["embed.prefix"], 2 if target.kind == "deit" else 1
    tensors = {TOKENS[0]: prefix[None, :1], POSITIONS: pad_positions(state, target, "table", "embed", count)}
    if target.kind == "deit":
        tensors[TOKENS[1]] = prefix[None, 1:]
    if target.kind == "dinov2_with_registers":
        tensors[TOKENS[2]] = prefix[None, 1:]
    if target.kind.startswith("dinov2"):
        tensors["embeddings.mask_token"] = torch.zeros_like(prefix[:1])
    if target.decoder is not None:
        tensors["decoder.mask_token"] = state["decoder.mask"][None, None]
        tensors[DECODER_POSITIONS] = pad_positions(state, target, "decoder_table", "decoder", 1)
    return tensors


def pad_positions(state: Mapping[str, Tensor], target: ViTTarget, slot: str, module: str, zeros: int) -> Tensor:
    """Return the positions of a table behind zeros, (1, zeros + N, D)."""
    dim = state[f"{module}.{'prefix' if module == 'embed' else 'mask'}"].shape[-1]
    positions = make_positions(target.table(slot), state, f"{module}.table.weight", dim, target.grid)
    return torch.cat([positions.new_zeros(zeros, dim), positions])[None]
