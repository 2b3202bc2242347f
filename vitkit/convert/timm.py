"""timm's VisionTransformer: its state by vitkit's names. P prefix tokens, N = h w patches, D width.

What has no rule keeps its name, so that the strict `vitkit.weights.load` lists it.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

RULES = {
    r"patch_embed\.proj\.(\w+)": r"embed.patches.\1",
    r"blocks\.(\d+)\.norm1\.(\w+)": r"encoder.blocks.\1.attn.norm.\2",
    r"blocks\.(\d+)\.attn\.(qkv|q_norm|k_norm)\.(\w+)": r"encoder.blocks.\1.attn.f.\2.\3",
    r"blocks\.(\d+)\.attn\.proj\.(\w+)": r"encoder.blocks.\1.attn.f.out.\2",
    r"blocks\.(\d+)\.ls1\.gamma": r"encoder.blocks.\1.attn.scale",
    r"blocks\.(\d+)\.norm2\.(\w+)": r"encoder.blocks.\1.mlp.norm.\2",
    r"blocks\.(\d+)\.mlp\.fc1\.(\w+)": r"encoder.blocks.\1.mlp.f.up.\2",
    r"blocks\.(\d+)\.mlp\.fc2\.(\w+)": r"encoder.blocks.\1.mlp.f.down.\2",
    r"blocks\.(\d+)\.ls2\.gamma": r"encoder.blocks.\1.mlp.scale",
    r"norm\.(\w+)": r"encoder.norm.\1",
    r"fc_norm\.(\w+)": r"pool.norm.\1",
    r"attn_pool\.latent": r"pool.query",
    r"attn_pool\.(q|kv)\.(\w+)": r"pool.attn.\1.\2",
    r"attn_pool\.proj\.(\w+)": r"pool.attn.out.\1",
    r"attn_pool\.norm\.(\w+)": r"pool.mlp.norm.\1",
    r"attn_pool\.mlp\.fc1\.(\w+)": r"pool.mlp.f.up.\1",
    r"attn_pool\.mlp\.fc2\.(\w+)": r"pool.mlp.f.down.\1",
}


def convert(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """The state of a `vitkit.models.ViT` whose image is a grid (h, w) of patches.

    Raises: ValueError where the positions are not those of such a grid.
    """
    return {rename(name): tensor for name, tensor in reshape(state, grid).items()}


def rename(name: str) -> str:
    for pattern, target in RULES.items():
        if found := re.fullmatch(pattern, name):
            return found.expand(target)
    return name


def reshape(state: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Tokens lose their batch axis: `embed.prefix` (P, D), its positions added; `embed.table.weight` (h, w, D)."""
    if "pos_embed" not in state:
        raise ValueError(f"state must be of a timm VisionTransformer with pos_embed, got names {[*state][:3]}...")
    state = {name: tensor[0] if tensor.ndim == 3 else tensor for name, tensor in state.items()}
    positions = state.pop("pos_embed")
    prefix = torch.cat([state.pop(name, positions[:0]) for name in ("cls_token", "reg_token")])
    patches = grid[0] * grid[1]
    match len(positions) - patches:
        case 0:  # no_embed_class
            pass
        case count if count == len(prefix):
            prefix = prefix + positions[:count]
        case _:
            raise ValueError(
                f"grid must have as many patches as pos_embed, got grid={grid} for {len(positions)} positions "
                f"and {len(prefix)} prefix tokens"
            )
    return {**state, "embed.prefix": prefix, "embed.table.weight": positions[-patches:].unflatten(0, grid)}
