"""timm's VisionTransformer: the config of a `vitkit.models.ViT`, from the shapes of its tensors and what they lack.

P prefix tokens, N = h w patches, D width.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from vitkit.convert.parts import ratio
from vitkit.convert.rules import Rule, rename

PREFIX = ("cls_token", "dist_token", "reg_token")
CHUNKS = (Rule("blocks.{j}.{i}.{x}", "blocks.{i}.{x}"),)  # DINOv2's training files with block_chunks
# What DeiT III's and DINOv2's own files call by other names.
ALIASES = (
    Rule("register_tokens", "reg_token"),
    Rule("blocks.{i}.gamma_1", "blocks.{i}.ls1.gamma"),
    Rule("blocks.{i}.gamma_2", "blocks.{i}.ls2.gamma"),
    Rule("blocks.{i}.mlp.w12.{x}", "blocks.{i}.mlp.fc1.{x}"),
    Rule("blocks.{i}.mlp.w3.{x}", "blocks.{i}.mlp.fc2.{x}"),
)
ACTS: Mapping[str, str | Mapping[str, Any]] = {
    "gelu": "torch.nn.GELU",
    "gelu_tanh": {"class_path": "torch.nn.GELU", "init_args": {"approximate": "tanh"}},
    "quick_gelu": "vitkit.nn.QuickGELU",
    "relu": "torch.nn.ReLU",
    "silu": "torch.nn.SiLU",
}
# With the number of their axes.
NEEDED = {"pos_embed": 3, "patch_embed.proj.weight": 4, "blocks.0.mlp.fc1.weight": 2, "blocks.0.mlp.fc2.weight": 2}
SCALE = 1e-5  # where a LayerScale starts, in timm and DINOv2; what is loaded replaces it


class Facts(NamedTuple):
    """What the tensors of a ViT do not say.

    Args:
        size: (h, w) of the image.
        act: a value of `ACTS`.
        pool: timm's global_pool: token, avg, map, or "" for none, which gives the CLS token, else the mean.
        antialias: how positions are resampled to other sizes; timm does so with, DINOv2 and Hugging Face without.
    """

    heads: int
    size: tuple[int, int]
    eps: float = 1e-6
    act: str | Mapping[str, Any] = ACTS["gelu"]
    pool: str = "token"
    antialias: bool = True


def aliased(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By timm's names. DINOv2's registers have no positions: that of CLS moves into its token, as timm has it too."""
    named = rename(rename(state, CHUNKS), ALIASES)
    if "register_tokens" in state and {"cls_token", "pos_embed"} <= named.keys():
        positions = named["pos_embed"]
        named |= {"cls_token": named["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
    return named


def describe(state: Mapping[str, Tensor], facts: Facts) -> dict[str, Any]:
    """The config of a `vitkit.models.ViT` that `convert(state, grid)` fits.

    Raises: ValueError, one line, for all that does not fit together.
    """
    state = whole(aliased(state))
    if wrong := mismatches(state, facts):
        raise ValueError("; ".join(wrong))
    dim, channels, *patch = state["patch_embed.proj.weight"].shape
    norm = layer_norm(facts)
    arguments = {
        "encoder": encoder(state, facts, dim),
        "image_size": [*facts.size],
        "patch_size": patch,
        "outputs": len(state["head.weight"]) if "head.weight" in state else 0,
        "channels": channels,
        "prefix": prefix(state),
        "table": table(facts),
    }
    if "norm_pre.weight" in state:
        arguments["pre_norm"] = norm
    return {"class_path": "vitkit.models.ViT", "init_args": arguments | {"pool": pool(state, facts, dim)}}


def traits(state: Mapping[str, Tensor]) -> dict[str, object]:
    """What names and shapes say of an architecture, the size of its image and its outputs apart.

    Raises: ValueError for a state of another layout.
    """
    state = whole(aliased(state))
    dim, channels, *patch = state["patch_embed.proj.weight"].shape
    return {
        "width": dim,
        "depth": depth(state),
        "mlp": f"{'SwiGLU' if gated(state) else 'MLP'} of {state['blocks.0.mlp.fc2.weight'].shape[1]}",
        "patch": (*patch,),
        "channels": channels,
        "prefix tokens": prefix(state),
        "LayerScale": "blocks.0.ls1.gamma" in state,
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "pre_norm": "norm_pre.weight" in state,
    }


def whole(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The state itself. Raises: ValueError where names or axes are missing that all of the layout have."""
    if absent := [name for name in NEEDED if name not in state]:
        raise ValueError(f"state must be of a timm VisionTransformer, got no {', '.join(absent)}")
    axes = NEEDED | dict.fromkeys(PREFIX, 3)
    if odd := [f"{name} {(*state[name].shape,)}" for name in axes if name in state and state[name].ndim != axes[name]]:
        raise ValueError(f"state must be of a timm VisionTransformer, got the shapes {', '.join(odd)}")
    return state


def prefix(state: Mapping[str, Tensor]) -> int:
    return sum(state[name].shape[1] for name in PREFIX if name in state)


def depth(state: Mapping[str, Tensor]) -> int:
    return 1 + max(int(found[1]) for name in state if (found := re.match(r"blocks\.(\d+)\.", name)))


def mismatches(state: Mapping[str, Tensor], facts: Facts) -> list[str]:
    dim, _, *patch = state["patch_embed.proj.weight"].shape
    near = [max(side // cell, 1) * cell for side, cell in zip(facts.size, patch, strict=True)]
    pools = {"map": "attn_pool.latent" in state, "avg": "fc_norm.weight" in state}
    token = facts.pool in ("token", "map", "")
    wrong = {
        f"size must be a multiple of the patches {(*patch,)}, got size={facts.size}; take {(*near,)}": [*facts.size]
        != near,
        f"heads must divide the width {dim}, got heads={facts.heads}": dim % facts.heads,
        f"pool must be token, avg, map or '', got pool={facts.pool!r}": facts.pool not in ("token", "avg", "map", ""),
        f"pool must be map exactly where there is an attn_pool, got pool={facts.pool!r}": (facts.pool == "map")
        != pools["map"],
        f"pool must be avg where there is a fc_norm, got pool={facts.pool!r}": pools["avg"] and token,
        "pool must be token, avg or map where there is a head, got pool=''": not facts.pool and "head.weight" in state,
        "pool must be avg or map where there is no cls_token, got pool='token'": facts.pool == "token"
        and "cls_token" not in state,
    }
    return [text for text, holds in wrong.items() if holds]


def encoder(state: Mapping[str, Tensor], facts: Facts, dim: int) -> dict[str, Any]:
    """From `blocks.{i}.*` and `norm.*`."""
    arguments = {
        "dim": dim,
        "depth": depth(state),
        "heads": facts.heads,
        "final_norm": "norm.weight" in state,
        "norm": layer_norm(facts),
        "mlp": mlp(state, "blocks.0.mlp", facts),
    }
    if "blocks.0.attn.q_norm.weight" in state:
        arguments["attention"] = {"class_path": "vitkit.nn.Attention", "init_args": {"qk_norm": layer_norm(facts)}}
    if "blocks.0.ls1.gamma" in state:
        arguments["residual"] = {"class_path": "vitkit.nn.PreNorm", "init_args": {"scale": SCALE}}
    return {"class_path": "vitkit.nn.Encoder", "init_args": arguments}


def pool(state: Mapping[str, Tensor], facts: Facts, dim: int) -> dict[str, Any]:
    norm = layer_norm(facts)
    match facts.pool:
        case "map":
            inner = mlp(state, "attn_pool.mlp", facts)
            return {"class_path": "vitkit.nn.Attend", "init_args": {"heads": facts.heads, "norm": norm, "mlp": inner}}
        case "avg" if "fc_norm.weight" in state:
            return {"class_path": "vitkit.nn.Mean", "init_args": {"norm": norm}}
        case "token" | "" if "cls_token" in state:
            return {"class_path": "vitkit.nn.First"}
    return {"class_path": "vitkit.nn.Mean"}


def mlp(state: Mapping[str, Tensor], name: str, facts: Facts) -> dict[str, Any]:
    """A SwiGLU where the first matrix makes twice what the second reads."""
    dim, hidden = state[f"{name}.fc2.weight"].shape
    if gated(state, name):
        return {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": ratio(hidden, dim)}}
    return {"class_path": "vitkit.nn.MLP", "init_args": {"ratio": ratio(hidden, dim), "act": facts.act}}


def gated(state: Mapping[str, Tensor], name: str = "blocks.0.mlp") -> bool:
    first, second = (state.get(f"{name}.{layer}.weight") for layer in ("fc1", "fc2"))
    return first is not None and second is not None and len(first) == 2 * second.shape[1]


def layer_norm(facts: Facts) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": facts.eps}}


def table(facts: Facts) -> dict[str, Any]:
    rule = "vitkit.nn.bicubic_antialias" if facts.antialias else "vitkit.nn.bicubic"
    return {"class_path": "vitkit.nn.Learned", "init_args": {"resample": rule}}
