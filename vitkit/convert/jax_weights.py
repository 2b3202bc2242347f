"""Files .npz of https://github.com/google-research/vision_transformer, AugReg's too, in timm's layout.

D width, H heads, Dh head width, p q a patch, C channels. From here `vitkit.convert.timm` goes on.
"""

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from vitkit.convert.rules import Rule, rename

BLOCK = "Transformer/encoderblock_{i}"
RULES = (
    Rule("cls", "cls_token"),
    Rule("embedding/{x}", "patch_embed.proj.{x}"),
    Rule("Transformer/posembed_input/pos_embedding", "pos_embed"),
    Rule(f"{BLOCK}/LayerNorm_0/{{x}}", "blocks.{i}.norm1.{x}"),
    Rule(f"{BLOCK}/MultiHeadDotProductAttention_1/qkv/{{x}}", "blocks.{i}.attn.qkv.{x}"),
    Rule(f"{BLOCK}/MultiHeadDotProductAttention_1/out/{{x}}", "blocks.{i}.attn.proj.{x}"),
    Rule(f"{BLOCK}/LayerNorm_2/{{x}}", "blocks.{i}.norm2.{x}"),
    Rule(f"{BLOCK}/MlpBlock_3/Dense_0/{{x}}", "blocks.{i}.mlp.fc1.{x}"),
    Rule(f"{BLOCK}/MlpBlock_3/Dense_1/{{x}}", "blocks.{i}.mlp.fc2.{x}"),
    Rule("Transformer/encoder_norm/{x}", "norm.{x}"),
    Rule("head/{x}", "head.{x}"),
)
REFUSED = {
    r"pre_logits/.*": "a layer between the encoder and the head (pre_logits)",
    r"(conv_root|gn_root|block\d+)/.*": "a ResNet in front",
    r".*MAPHead_0/.*": "a pool by attention (SigLIP)",
    r"(params/|img/)*(pos_embedding|Transformer/encoderblock(_\d+)?/MlpBlock_0/.*)": "big_vision's layout",
}
QKV = ("query", "key", "value")


def count_heads(arrays: Mapping[str, np.ndarray]) -> int:
    """How many heads attention has, by the shape of its kernel (D, H, Dh)."""
    name = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    kernel = select_weights(arrays).get(name)
    if kernel is None or kernel.ndim != 3:
        raise ValueError(f"arrays must be of a ViT with {name} (D, H, Dh), got {[*arrays][:3]}...")
    return kernel.shape[1]


def to_timm(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """timm's layout. What has no rule keeps its name, so that `vitkit.convert.importer.build_bundle` lists it.

    Raises: ValueError that names all that a `vitkit.models.ViT` cannot hold.
    """
    named = select_weights(arrays)
    if wrong := [reason for wild, reason in REFUSED.items() if any(re.fullmatch(wild, name) for name in named)]:
        raise ValueError(f"arrays must be of a ViT that can be held here, got one with {', '.join(wrong)}")
    if wrong := [f"{name} ({array.dtype})" for name, array in named.items() if array.dtype.kind != "f"]:
        raise ValueError(f"arrays must hold floats, got {', '.join(wrong)}")
    state = {
        rename_ending(name): transpose_kernel(name, torch.from_numpy(np.ascontiguousarray(a)))
        for name, a in named.items()
    }
    return rename(fuse_qkv(state), RULES)


def select_weights(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Files of a training hold the weights among other things of the optimizer, below opt/target."""
    target = "opt/target/"
    if not any(name.startswith(target) for name in arrays):
        return dict(arrays)
    return {name.removeprefix(target): array for name, array in arrays.items() if name.startswith(target)}


def rename_ending(name: str) -> str:
    return re.sub(r"/(kernel|scale)$", "/weight", name)


def transpose_kernel(name: str, array: Tensor) -> Tensor:
    """Kernels have their outputs last, and those of attention its heads apart."""
    match array.ndim, name.rpartition("/")[2]:
        case 4, "kernel":
            return array.permute(3, 2, 0, 1)  # (p, q, C, D) -> (D, C, p, q)
        case 3, "kernel" if "/out/" in name:
            return array.flatten(0, 1).mT  # (H, Dh, D) -> (D, H Dh)
        case 3, "kernel":
            return array.flatten(1).mT  # (D, H, Dh) -> (H Dh, D)
        case 2, "kernel":
            return array.mT
        case _, "bias":
            return array.flatten()
    return array


def fuse_qkv(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys and values in one, wherever all three are there."""
    found = dict(state)
    for name in state:
        before, query, after = name.partition("/query/")
        names = [f"{before}/{one}/{after}" for one in QKV]
        if query and all(one in state for one in names):
            found[f"{before}/qkv/{after}"] = torch.cat([found.pop(one) for one in names])
    return found
