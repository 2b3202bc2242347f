"""timm's VisionTransformer as the library builds it: what an instance says, and the arguments for one."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from vitkit.convert.parts import Part, Trunk, is_layer_norm, is_linear, part, ratio, refuse, trunk
from vitkit.convert.timm_config import ACTS, SCALE, Facts
from vitkit.models import ViT
from vitkit.nn import MLP, Attend, First, Learned, Mean, Sinusoidal

# timm's activations by the names of their classes.
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "ReLU": "relu", "SiLU": "silu"}


def facts(model: Any) -> Facts:
    """What the tensors of a timm model do not say.

    Raises: ValueError that names all that a `vitkit.models.ViT` cannot hold.
    """
    refuse("timm's model", family(model) or [*stem(model), *blocks(model), *readout(model)])
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
    """The keyword arguments of timm's VisionTransformer that loads what `revert` gives.

    All are plain data but `norm_layer` and `mlp_layer`, which are there where a default does not do; a model made by
    the name `architecture(config)` has these two already.

    Raises: ValueError that names all that timm cannot hold.
    """
    own = part(config)
    if own.kind is not ViT:
        raise ValueError(f"model must be a vitkit.models.ViT, got {own.kind.__name__}")
    body, before, table = trunk(own.args["encoder"], qk_norm=True), part(own.args["pre_norm"]), part(own.args["table"])
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
    refuse("by timm's VisionTransformer this model", problems)
    return {**sizes(own, body), **layers(body), **read, "pre_norm": before.kind is not nn.Identity}


def architecture(config: Mapping[str, Any]) -> str:
    """A name of timm's that has the `norm_layer` and `mlp_layer` of `arguments(config)`, which no file can spell."""
    eps, swiglu = trunk(part(config).args["encoder"], qk_norm=True).eps, "mlp_layer" in arguments(config)
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
