"""Files .npz of https://github.com/google-research/vision_transformer, AugReg's too, in timm's layout.

D width, H heads, Dh head width, p q a patch, C channels. `vitkit.convert.timm` reads the result.
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
REFUSED = {  # patterns of names, and the part of another architecture that they belong to
    r"pre_logits/.*": "a layer between the encoder and the head (pre_logits)",
    r"(conv_root|gn_root|block\d+)/.*": "a ResNet in front",
    r".*MAPHead_0/.*": "a pool by attention (SigLIP)",
    r"(params/|img/)*(pos_embedding|Transformer/encoderblock(_\d+)?/MlpBlock_0/.*)": "big_vision's layout",
}
QKV = ("query", "key", "value")


def count_heads(arrays: Mapping[str, np.ndarray]) -> int:
    """Return the number of attention heads, by the shape (D, H, Dh) of a kernel. Raises: ValueError without one."""
    name = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    kernel = select_weights(arrays).get(name)
    if kernel is None or kernel.ndim != 3:
        raise ValueError(f"arrays must be of a ViT with {name} (D, H, Dh), got {[*arrays][:3]}...")
    return kernel.shape[1]


def to_timm(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Convert arrays to timm's layout.

    Names without a rule stay as they are, so that `vitkit.convert.importer.build_bundle` lists them.

    Raises: ValueError that lists the parts that a `vitkit.models.ViT` does not have.
    """
    weights = select_weights(arrays)
    if reasons := [
        reason for pattern, reason in REFUSED.items() if any(re.fullmatch(pattern, name) for name in weights)
    ]:
        raise ValueError(f"arrays must be of a plain ViT, got one with {', '.join(reasons)}")
    if others := [f"{name} ({array.dtype})" for name, array in weights.items() if array.dtype.kind != "f"]:
        raise ValueError(f"arrays must hold floats, got {', '.join(others)}")
    state = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in weights.items()}
    state = {rename_ending(name): transpose_kernel(name, tensor) for name, tensor in state.items()}
    return rename(fuse_qkv(state), RULES)


def select_weights(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights: those below opt/target in files of a training, else all arrays."""
    target = "opt/target/"
    if not any(name.startswith(target) for name in arrays):
        return dict(arrays)
    return {name.removeprefix(target): array for name, array in arrays.items() if name.startswith(target)}


def rename_ending(name: str) -> str:
    return re.sub(r"/(kernel|scale)$", "/weight", name)


def transpose_kernel(name: str, array: Tensor) -> Tensor:
    """Move a kernel's outputs from its last axis to its first, and merge the axes of heads and their width."""
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
    """Merge the tensors of queries, keys and values where all three are there."""
    fused = dict(state)
    for name in state:
        before, query, after = name.partition("/query/")
        names = [f"{before}/{part}/{after}" for part in QKV]
        if query and all(part in state for part in names):
            fused[f"{before}/qkv/{after}"] = torch.cat([fused.pop(part) for part in names])
    return fused
