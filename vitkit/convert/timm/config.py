"""timm's VisionTransformer: the config of a `vitkit.models.ViT`, from the shapes of its tensors and what they lack.

P prefix tokens, N = h w patches, D width.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from vitkit.convert.config_slots import Part, Trunk, is_layer_norm, is_linear, part, ratio, read_trunk, refuse_problems
from vitkit.convert.rules import Rule, rename
from vitkit.models import ViT
from vitkit.nn import MLP, Attend, First, Learned, Mean, Sinusoidal

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


def read_config(state: Mapping[str, Tensor], facts: Facts) -> dict[str, Any]:
    """The config of a `vitkit.models.ViT` that `to_vitkit(state, grid)` fits.

    Raises: ValueError, one line, for all that does not fit together.
    """
    state = whole(aliased(state))
    if wrong := mismatches(state, facts):
        raise ValueError("; ".join(wrong))
    dim, channels, *patch = state["patch_embed.proj.weight"].shape
    norm = layer_norm(facts)
    arguments = {
        "encoder": read_encoder(state, facts, dim),
        "image_size": [*facts.size],
        "patch_size": patch,
        "outputs": len(state["head.weight"]) if "head.weight" in state else 0,
        "channels": channels,
        "prefix": prefix(state),
        "table": make_table_config(facts),
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


def read_encoder(state: Mapping[str, Tensor], facts: Facts, dim: int) -> dict[str, Any]:
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


def make_table_config(facts: Facts) -> dict[str, Any]:
    rule = "vitkit.nn.bicubic_antialias" if facts.antialias else "vitkit.nn.bicubic"
    return {"class_path": "vitkit.nn.Learned", "init_args": {"resample": rule}}


# timm's activations by the names of their classes.
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "ReLU": "relu", "SiLU": "silu"}


def read_facts(model: Any) -> Facts:
    """What the tensors of a timm model do not say.

    Raises: ValueError that names all that a `vitkit.models.ViT` cannot hold.
    """
    refuse_problems("timm's model", family(model) or [*stem(model), *blocks(model), *readout(model)])
    first = model.blocks[0]
    size = tuple(model.patch_embed.img_size)
    return Facts(first.attn.num_heads, size, first.norm1.eps, ACTS[activation(first.mlp.act)], model.global_pool)


def family(model: Any) -> list[str]:
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    held = type(model) in (VisionTransformer, VisionTransformerDistilled)
    return [] if held else [f"the class {type(model).__name__}"]


def stem(model: Any) -> list[str]:
    """Reasons against what is before the blocks."""
    from timm.layers.patch_embed import PatchEmbed

    patches = model.patch_embed
    if (kind := type(patches)) is not PatchEmbed:
        return [f"patches by {kind.__name__}"]
    sides = zip(patches.img_size, patches.patch_size, strict=True)
    near = tuple(side // cell * cell for side, cell in sides)
    wrong = {
        "a norm of the patches": type(patches.norm) is not nn.Identity,
        f"a size that patches do not divide, {(*patches.img_size,)}; take img_size={near}": near
        != tuple(patches.img_size),
        "padding to whole patches": patches.dynamic_img_pad,
        "no table of positions": model.pos_embed is None,
    }
    return [reason for reason, holds in wrong.items() if holds]


def blocks(model: Any) -> list[str]:
    """Reasons against the blocks."""
    from timm.layers.attention import Attention
    from timm.layers.mlp import GluMlp, Mlp
    from timm.models.vision_transformer import Block

    if wrong := {type(block).__name__ for block in model.blocks} - {Block.__name__}:
        return [f"blocks by {', '.join(sorted(wrong))}"]
    kinds = {
        **{f"attention by {type(b.attn).__name__}": type(b.attn) is not Attention for b in model.blocks},
        **{f"feed-forwards by {type(b.mlp).__name__}": type(b.mlp) not in (Mlp, GluMlp) for b in model.blocks},
    }
    if wrong := [reason for reason, holds in kinds.items() if holds]:
        return wrong
    return inside(model)


def inside(model: Any) -> list[str]:
    """Reasons against the layers of usual blocks."""
    from timm.layers.mlp import GluMlp

    attention, mlps = [block.attn for block in model.blocks], [block.mlp for block in model.blocks]
    norms = [
        module
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower() and not name.startswith("patch_embed.")
    ]
    acts = {activation(mlp.act) for mlp in mlps}
    wrong = {
        "a norm of what attention gathered": any(type(attn.norm) is not nn.Identity for attn in attention),
        "a gate of what attention gathered": any(attn.gate is not None for attn in attention),
        "a norm inside the feed-forwards": any(type(mlp.norm) is not nn.Identity for mlp in mlps),
        "a gated feed-forward other than SwiGLU": any(
            type(mlp) is GluMlp and (mlp.gate_last or activation(mlp.act) != "silu") for mlp in mlps
        ),
        f"the activation {', '.join(sorted(acts))}": len(acts) > 1 or not acts <= ACTS.keys(),
        f"norms by {', '.join(sorted({type(norm).__name__ for norm in norms}))}": not all(
            isinstance(norm, nn.LayerNorm) for norm in norms
        ),
        "norms that differ in eps": len({getattr(norm, "eps", None) for norm in norms}) > 1,
    }
    return [reason for reason, holds in wrong.items() if holds]


def readout(model: Any) -> list[str]:
    """Reasons against what is after the blocks."""
    from timm.layers.attention_pool import AttentionPoolLatent

    pool, kind, prefix = model.attn_pool, model.global_pool, model.num_prefix_tokens
    own = getattr(model.blocks[0], "attn", None)
    wrong = {
        f"global_pool={kind}": kind not in ("token", "avg", "map", ""),
        "a mean that includes the prefix tokens": kind == "avg" and model.pool_include_prefix and prefix,
        "an attention pool that leaves out the prefix tokens": kind == "map"
        and not model.pool_include_prefix
        and prefix,
        "a norm after a pool that is no mean": kind in ("token", "map", "") and type(model.fc_norm) is not nn.Identity,
        "a head on every token": not kind and type(model.head) is not nn.Identity,
    }
    if type(pool) is AttentionPoolLatent:
        wrong["an attention pool of another kind"] = not (
            pool.num_heads == getattr(own, "num_heads", None)
            and pool.latent_len == 1
            and pool.pos_embed is None
            and pool.pool == "token"
            and type(pool.q) is nn.Linear
            and type(pool.q_norm) is nn.Identity
            and pool.mlp is not None
        )
    return [reason for reason, holds in wrong.items() if holds]


def activation(act: Any) -> str:
    tanh = "_tanh" if getattr(act, "approximate", "none") == "tanh" else ""
    return ACTIVATIONS.get(type(act).__name__, type(act).__name__) + tanh


def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of timm's VisionTransformer that loads what `from_vitkit` gives.

    All are plain data but `norm_layer` and `mlp_layer`, which are there where a default does not do; a model made by
    the name `architecture(config)` has these two already.

    Raises: ValueError that names all that timm cannot hold.
    """
    own = part(config)
    if own.kind is not ViT:
        raise ValueError(f"model must be a vitkit.models.ViT, got {own.kind.__name__}")
    body = read_trunk(own.args["encoder"], qk_norm=True)
    before, table = part(own.args["pre_norm"]), part(own.args["table"])
    read, norms, problems = pooled(own, body)
    norms = [norm for norm in (body.qk_norm, *norms, *([before] if before.kind is not nn.Identity else [])) if norm]
    wrong = {
        "norms must be LayerNorm with one eps": not all(
            is_layer_norm(norm) and norm.args.get("eps") == body.eps for norm in norms
        ),
        f"act must be of {', '.join(ACTS)}": not (body.act is None or act_of(body)),
        "table must be Learned or Sinusoidal": table.kind not in (Learned, Sinusoidal),
        "head must be torch.nn.Linear": not is_linear(part(own.args["head"])),
    }
    problems = [*body.problems, *problems, *(text for text, holds in wrong.items() if holds)]
    refuse_problems("by timm's VisionTransformer this model", problems)
    return {**sizes(own, body), **layers(body), **read, "pre_norm": before.kind is not nn.Identity}


def architecture(config: Mapping[str, Any]) -> str:
    """A name of timm's that has the `norm_layer` and `mlp_layer` of `arguments(config)`, which no file can spell."""
    eps, swiglu = read_trunk(part(config).args["encoder"], qk_norm=True).eps, "mlp_layer" in arguments(config)
    match eps, swiglu:
        case 1e-6, False:
            return "vit_base_patch16_224"
        case 1e-6, True:
            return "vit_giant_patch14_dinov2"
        case 1e-5, False:
            return "vit_base_patch16_clip_224"
    kind = "SwiGLU" if swiglu else "MLP"
    raise ValueError(
        f"eps must be 1e-6, or 1e-5 with MLP, for timm to make the model by a name, got {eps=} with {kind}"
    )


def sizes(own: Part, body: Trunk) -> dict[str, Any]:
    prefix = own.args["prefix"]
    return {
        "img_size": tuple(own.args["image_size"]),
        "patch_size": tuple(own.args["patch_size"]),
        "in_chans": own.args["channels"],
        "num_classes": own.args["outputs"],
        "embed_dim": body.dim,
        "depth": body.depth,
        "num_heads": body.heads,
        "class_token": prefix > 0,
        "reg_tokens": max(prefix - 1, 0),
        "no_embed_class": True,
    }


def layers(body: Trunk) -> dict[str, Any]:
    from timm.layers.mlp import SwiGLUPacked

    gated = body.act is None
    found = {
        "mlp_ratio": ratio(body.hidden * (2 if gated else 1), body.dim),
        "qk_norm": body.qk_norm is not None,
        "act_layer": act_of(body),
        # 0 is no scale there, and None the default of a name; what is loaded replaces the number
        "init_values": 0.0 if body.scale is None else body.scale or SCALE,
        "final_norm": body.final_norm,
    }
    norm = partial(nn.LayerNorm, eps=body.eps) if body.eps != 1e-6 else None
    special = {"mlp_layer": SwiGLUPacked if gated else None, "norm_layer": norm}
    return found | {name: layer for name, layer in special.items() if layer}


def act_of(body: Trunk) -> str:
    """By timm's name; none for another."""
    held = part(ACTS["silu"]) if body.act is None else body.act
    return next((name for name, value in ACTS.items() if part(value) == held), "")


def pooled(own: Part, body: Trunk) -> tuple[dict[str, Any], list[Part], list[str]]:
    """The arguments for the pool, its norms, and what timm cannot hold of it."""
    pool = part(own.args["pool"])
    norm = part(pool.args["norm"]) if "norm" in pool.args else None
    match pool.kind:
        case kind if kind is First:
            return {"global_pool": "token", "fc_norm": False}, [], []
        case kind if kind is Mean and norm and norm.kind is nn.Identity:
            return {"global_pool": "avg", "fc_norm": False}, [], []
        case kind if kind is Mean and norm:
            twice = ["pool must be without a norm where the encoder has a final one"] if body.final_norm else []
            return {"global_pool": "avg", "fc_norm": True, "final_norm": True}, [norm], twice
        case kind if kind is Attend and norm:
            found = {"global_pool": "map", "fc_norm": False, "pool_include_prefix": own.args["prefix"] > 0}
            return found, [norm], attended(pool, body)
    return {}, [], ["pool must be First, Mean or Attend"]


def attended(pool: Part, body: Trunk) -> list[str]:
    """timm gives the attention pool the sizes of the blocks."""
    mlp = part(pool.args["mlp"])
    hidden = body.hidden * (2 if body.act is None else 1)
    held = pool.args["heads"] == body.heads and mlp.kind is MLP and int(body.dim * mlp.args["ratio"]) == hidden
    if held and part(mlp.args["act"]) == (body.act or part(ACTS["silu"])):
        return []
    return ["pool must have the heads and the MLP of the blocks"]
