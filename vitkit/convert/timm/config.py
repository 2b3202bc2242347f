"""The config of timm's VisionTransformer as that of a `vitkit.models.ViT`, and back.

Tensors tell most of it by their names and shapes, `Facts` the rest. P prefix tokens, N = h w patches, D width.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from vitkit.convert.config_slots import (
    Part,
    Trunk,
    compute_mlp_ratio,
    is_layer_norm,
    is_linear,
    list_failures,
    read_part,
    read_trunk,
    refuse_problems,
)
from vitkit.convert.rules import Rule, rename
from vitkit.models import ViT
from vitkit.nn import MLP, Attend, First, Learned, Mean, Sinusoidal

PREFIX = ("cls_token", "dist_token", "reg_token")
CHUNKS = (Rule("blocks.{j}.{i}.{x}", "blocks.{i}.{x}"),)  # DINOv2's training files with block_chunks
# Names in the files of DeiT III and DINOv2 -> names in timm.
ALIASES = (
    Rule("register_tokens", "reg_token"),
    Rule("blocks.{i}.gamma_1", "blocks.{i}.ls1.gamma"),
    Rule("blocks.{i}.gamma_2", "blocks.{i}.ls2.gamma"),
    Rule("blocks.{i}.mlp.w12.{x}", "blocks.{i}.mlp.fc1.{x}"),
    Rule("blocks.{i}.mlp.w3.{x}", "blocks.{i}.mlp.fc2.{x}"),
)
# Names of activations in timm -> configs.
ACTS: Mapping[str, str | Mapping[str, Any]] = {
    "gelu": "torch.nn.GELU",
    "gelu_tanh": {"class_path": "torch.nn.GELU", "init_args": {"approximate": "tanh"}},
    "quick_gelu": "vitkit.nn.QuickGELU",
    "relu": "torch.nn.ReLU",
    "silu": "torch.nn.SiLU",
}
# Tensors of every model -> the number of their axes.
REQUIRED = {"pos_embed": 3, "patch_embed.proj.weight": 4, "blocks.0.mlp.fc1.weight": 2, "blocks.0.mlp.fc2.weight": 2}
INITIAL_SCALE = 1e-5  # initial LayerScale of timm and DINOv2; the weights replace it


class Facts(NamedTuple):
    """The properties of a ViT that its tensors do not show.

    Args:
        size: (h, w) of the image, in pixels.
        act: a value of `ACTS`.
        pool: timm's global_pool: token, avg, map, or "" for none; then the CLS token is read, or the mean without one.
        antialias: whether positions are resampled with antialias, as in timm; without it in DINOv2 and Hugging Face.
    """

    heads: int
    size: tuple[int, int]
    eps: float = 1e-6
    act: str | Mapping[str, Any] = ACTS["gelu"]
    pool: str = "token"
    antialias: bool = True


def rename_aliases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state under timm's names.

    Where DINOv2 has registers, which have no positions, the position of CLS is added to its token, as timm does.
    """
    tensors = rename(rename(state, CHUNKS), ALIASES)
    if "register_tokens" in state and {"cls_token", "pos_embed"} <= tensors.keys():
        positions = tensors["pos_embed"]
        tensors |= {"cls_token": tensors["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
    return tensors


def read_config(state: Mapping[str, Tensor], facts: Facts) -> dict[str, Any]:
    """Return the config of the `vitkit.models.ViT` whose state is `to_vitkit(state, grid)`.

    Raises: ValueError, in one line, with every contradiction between tensors and facts.
    """
    state = check_layout(rename_aliases(state))
    if mismatches := find_mismatches(state, facts):
        raise ValueError("; ".join(mismatches))
    dim, channels, *patch = state["patch_embed.proj.weight"].shape
    args = {
        "encoder": read_encoder(state, facts, dim),
        "image_size": [*facts.size],
        "patch_size": patch,
        "outputs": len(state["head.weight"]) if "head.weight" in state else 0,
        "channels": channels,
        "prefix": count_prefix_tokens(state),
        "table": make_table_config(facts),
    }
    if "norm_pre.weight" in state:
        args["pre_norm"] = make_norm_config(facts)
    args["pool"] = make_pool_config(state, facts)
    return {"class_path": "vitkit.models.ViT", "init_args": args}


def read_traits(state: Mapping[str, Tensor]) -> dict[str, object]:
    """Return the properties of the architecture that names and shapes show, without image size and outputs.

    Raises: ValueError for a state of another layout.
    """
    state = check_layout(rename_aliases(state))
    dim, channels, *patch = state["patch_embed.proj.weight"].shape
    return {
        "width": dim,
        "depth": count_blocks(state),
        "mlp": f"{'SwiGLU' if has_swiglu(state) else 'MLP'} of {state['blocks.0.mlp.fc2.weight'].shape[1]}",
        "patch": (*patch,),
        "channels": channels,
        "prefix tokens": count_prefix_tokens(state),
        "LayerScale": "blocks.0.ls1.gamma" in state,
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "pre_norm": "norm_pre.weight" in state,
        "attention pool": "attn_pool.latent" in state,
    }


def check_layout(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the state. Raises: ValueError where it lacks names or axes that every model of timm has."""
    if absent := [name for name in REQUIRED if name not in state]:
        raise ValueError(f"state must be of a timm VisionTransformer, got no {', '.join(absent)}")
    axes = REQUIRED | dict.fromkeys(PREFIX, 3)
    if odd := [f"{name} {(*state[name].shape,)}" for name in axes if name in state and state[name].ndim != axes[name]]:
        raise ValueError(f"state must be of a timm VisionTransformer, got the shapes {', '.join(odd)}")
    return state


def count_prefix_tokens(state: Mapping[str, Tensor]) -> int:
    return sum(state[name].shape[1] for name in PREFIX if name in state)


def count_blocks(state: Mapping[str, Tensor]) -> int:
    return 1 + max(int(match[1]) for name in state if (match := re.match(r"blocks\.(\d+)\.", name)))


def find_mismatches(state: Mapping[str, Tensor], facts: Facts) -> list[str]:
    """Return the contradictions between tensors and facts."""
    dim, _, *patch = state["patch_embed.proj.weight"].shape
    nearest = [max(side // cell, 1) * cell for side, cell in zip(facts.size, patch, strict=True)]
    pools = {"map": "attn_pool.latent" in state, "avg": "fc_norm.weight" in state}
    token = facts.pool in ("token", "map", "")
    problems = {
        f"size must be a multiple of the patches {(*patch,)}, got size={facts.size}; take {(*nearest,)}": (
            [*facts.size] != nearest
        ),
        f"heads must divide the width {dim}, got heads={facts.heads}": dim % facts.heads,
        f"pool must be token, avg, map or '', got pool={facts.pool!r}": facts.pool not in ("token", "avg", "map", ""),
        f"pool must be map exactly where there is an attn_pool, got pool={facts.pool!r}": (
            (facts.pool == "map") != pools["map"]
        ),
        f"pool must be avg where there is a fc_norm, got pool={facts.pool!r}": pools["avg"] and token,
        "pool must be token, avg or map where there is a head, got pool=''": not facts.pool and "head.weight" in state,
        "pool must be avg or map where there is no cls_token, got pool='token'": (
            facts.pool == "token" and "cls_token" not in state
        ),
    }
    return [problem for problem, applies in problems.items() if applies]


def read_encoder(state: Mapping[str, Tensor], facts: Facts, dim: int) -> dict[str, Any]:
    """Return the config of the Encoder that holds `blocks.{i}.*` and `norm.*`."""
    args = {
        "dim": dim,
        "depth": count_blocks(state),
        "heads": facts.heads,
        "final_norm": "norm.weight" in state,
        "norm": make_norm_config(facts),
        "mlp": make_mlp_config(state, "blocks.0.mlp", facts),
    }
    if "blocks.0.attn.q_norm.weight" in state:
        qk_norm = make_norm_config(facts)
        args["attention"] = {"class_path": "vitkit.nn.Attention", "init_args": {"qk_norm": qk_norm}}
    if "blocks.0.ls1.gamma" in state:
        args["residual"] = {"class_path": "vitkit.nn.PreNorm", "init_args": {"scale": INITIAL_SCALE}}
    return {"class_path": "vitkit.nn.Encoder", "init_args": args}


def make_pool_config(state: Mapping[str, Tensor], facts: Facts) -> dict[str, Any]:
    norm = make_norm_config(facts)
    match facts.pool:
        case "map":
            mlp = make_mlp_config(state, "attn_pool.mlp", facts)
            return {"class_path": "vitkit.nn.Attend", "init_args": {"heads": facts.heads, "norm": norm, "mlp": mlp}}
        case "avg" if "fc_norm.weight" in state:
            return {"class_path": "vitkit.nn.Mean", "init_args": {"norm": norm}}
        case "token" | "" if "cls_token" in state:
            return {"class_path": "vitkit.nn.First"}
    return {"class_path": "vitkit.nn.Mean"}


def make_mlp_config(state: Mapping[str, Tensor], name: str, facts: Facts) -> dict[str, Any]:
    dim, hidden = state[f"{name}.fc2.weight"].shape
    if has_swiglu(state, name):
        return {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": compute_mlp_ratio(hidden, dim)}}
    return {"class_path": "vitkit.nn.MLP", "init_args": {"ratio": compute_mlp_ratio(hidden, dim), "act": facts.act}}


def has_swiglu(state: Mapping[str, Tensor], name: str = "blocks.0.mlp") -> bool:
    """Return whether the first matrix has twice as many outputs as the second has inputs."""
    first, second = (state.get(f"{name}.{layer}.weight") for layer in ("fc1", "fc2"))
    return first is not None and second is not None and len(first) == 2 * second.shape[1]


def make_norm_config(facts: Facts) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": facts.eps}}


def make_table_config(facts: Facts) -> dict[str, Any]:
    resample = "vitkit.nn.bicubic_antialias" if facts.antialias else "vitkit.nn.bicubic"
    return {"class_path": "vitkit.nn.Learned", "init_args": {"resample": resample}}


# Classes of activations in timm -> their names in timm.
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "ReLU": "relu", "SiLU": "silu"}


def read_facts(model: Any) -> Facts:
    """Return the facts of a model of timm.

    Raises: ValueError that lists every setting that a `vitkit.models.ViT` does not support.
    """
    problems = find_class_problems(model)
    problems = problems or [*find_patch_problems(model), *find_block_problems(model), *find_readout_problems(model)]
    refuse_problems("timm's model", problems)
    first = model.blocks[0]
    size = tuple(model.patch_embed.img_size)
    return Facts(first.attn.num_heads, size, first.norm1.eps, ACTS[get_act_name(first.mlp.act)], model.global_pool)


def find_class_problems(model: Any) -> list[str]:
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    known = type(model) in (VisionTransformer, VisionTransformerDistilled)
    return [] if known else [f"the class {type(model).__name__}"]


def find_patch_problems(model: Any) -> list[str]:
    """Return a message for each setting of patches and positions that a ViT does not support."""
    from timm.layers.patch_embed import PatchEmbed

    patches = model.patch_embed
    if (kind := type(patches)) is not PatchEmbed:
        return [f"patches of class {kind.__name__}"]
    sides = zip(patches.img_size, patches.patch_size, strict=True)
    nearest = tuple(side // cell * cell for side, cell in sides)
    problems = {
        "a norm of the patches": type(patches.norm) is not nn.Identity,
        f"a size that patches do not divide, {(*patches.img_size,)}; take img_size={nearest}": (
            nearest != tuple(patches.img_size)
        ),
        "padding to whole patches": patches.dynamic_img_pad,
        "no table of positions": model.pos_embed is None,
    }
    return [problem for problem, applies in problems.items() if applies]


def find_block_problems(model: Any) -> list[str]:
    """Return a message for each setting of the blocks that a ViT does not support."""
    from timm.layers.attention import Attention
    from timm.layers.mlp import GluMlp, Mlp
    from timm.models.vision_transformer import Block

    if others := {type(block).__name__ for block in model.blocks} - {Block.__name__}:
        return [f"blocks of class {', '.join(sorted(others))}"]
    kinds = {
        **{f"attention of class {type(b.attn).__name__}": type(b.attn) is not Attention for b in model.blocks},
        **{f"MLPs of class {type(b.mlp).__name__}": type(b.mlp) not in (Mlp, GluMlp) for b in model.blocks},
    }
    problems = [problem for problem, applies in kinds.items() if applies]
    return problems or find_layer_problems(model)


def find_layer_problems(model: Any) -> list[str]:
    """Return a message for each setting of the layers within the blocks that a ViT does not support."""
    from timm.layers.mlp import GluMlp

    attention, mlps = [block.attn for block in model.blocks], [block.mlp for block in model.blocks]
    norms = [
        module
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower() and not name.startswith("patch_embed.")
    ]
    acts = {get_act_name(mlp.act) for mlp in mlps}
    problems = {
        "a norm between attention and its projection": any(type(attn.norm) is not nn.Identity for attn in attention),
        "a gate between attention and its projection": any(attn.gate is not None for attn in attention),
        "a norm inside the MLPs": any(type(mlp.norm) is not nn.Identity for mlp in mlps),
        "a gated MLP other than SwiGLU": any(
            type(mlp) is GluMlp and (mlp.gate_last or get_act_name(mlp.act) != "silu") for mlp in mlps
        ),
        f"the activation {', '.join(sorted(acts))}": len(acts) > 1 or not acts <= ACTS.keys(),
        f"norms of class {', '.join(sorted({type(norm).__name__ for norm in norms}))}": not all(
            isinstance(norm, nn.LayerNorm) for norm in norms
        ),
        "norms that differ in eps": len({getattr(norm, "eps", None) for norm in norms}) > 1,
    }
    return [problem for problem, applies in problems.items() if applies]


def find_readout_problems(model: Any) -> list[str]:
    """Return a message for each setting of pool and head that a ViT does not support."""
    from timm.layers.attention_pool import AttentionPoolLatent

    pool, kind, prefix = model.attn_pool, model.global_pool, model.num_prefix_tokens
    attention = getattr(model.blocks[0], "attn", None)
    problems = {
        f"global_pool={kind}": kind not in ("token", "avg", "map", ""),
        "a mean that includes the prefix tokens": kind == "avg" and model.pool_include_prefix and prefix,
        "an attention pool that leaves out the prefix tokens": (
            kind == "map" and not model.pool_include_prefix and prefix
        ),
        "a norm after a pool that is not a mean": kind in ("token", "map", "")
        and type(model.fc_norm) is not nn.Identity,
        "a head on every token": not kind and type(model.head) is not nn.Identity,
    }
    if type(pool) is AttentionPoolLatent:
        problems["an attention pool of another kind"] = not (
            pool.num_heads == getattr(attention, "num_heads", None)
            and pool.latent_len == 1
            and pool.pos_embed is None
            and pool.pool == "token"
            and type(pool.q) is nn.Linear
            and type(pool.q_norm) is nn.Identity
            and pool.mlp is not None
        )
    return [problem for problem, applies in problems.items() if applies]


def get_act_name(act: Any) -> str:
    """Return the name of an activation in timm; of its class if it has none."""
    tanh = "_tanh" if getattr(act, "approximate", "none") == "tanh" else ""
    return ACTIVATIONS.get(type(act).__name__, type(act).__name__) + tanh


def make_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of timm's VisionTransformer that loads the state of `from_vitkit`.

    All are plain data but `norm_layer` and `mlp_layer`, which are absent where the defaults fit. A model created by
    the name `choose_architecture(config)` has these two by itself.

    Raises: ValueError that lists every setting that timm does not support.
    """
    vit = read_part(config)
    if vit.kind is not ViT:
        raise ValueError(f"model must be a vitkit.models.ViT, got {vit.kind.__name__}")
    trunk = read_trunk(vit.args["encoder"], qk_norm=True)
    pre_norm, table = read_part(vit.args["pre_norm"]), read_part(vit.args["table"])
    pool, norms, problems = make_pool_arguments(vit, trunk)
    norms = [norm for norm in (trunk.qk_norm, *norms) if norm]
    norms += [] if pre_norm.kind is nn.Identity else [pre_norm]
    checks = {
        "norms must be LayerNorm with one eps": all(
            is_layer_norm(norm) and norm.args.get("eps") == trunk.eps for norm in norms
        ),
        f"act must be one of {', '.join(ACTS)}": trunk.act is None or find_act_name(trunk),
        "table must be Learned or Sinusoidal": table.kind in (Learned, Sinusoidal),
        "head must be torch.nn.Linear": is_linear(read_part(vit.args["head"])),
    }
    refuse_problems("the export to timm's VisionTransformer", [*trunk.problems, *problems, *list_failures(checks)])
    sizes, layers = make_size_arguments(vit, trunk), make_layer_arguments(trunk)
    return {**sizes, **layers, **pool, "pre_norm": pre_norm.kind is not nn.Identity}


def choose_architecture(config: Mapping[str, Any]) -> str:
    """Return a name of timm's with the `norm_layer` and `mlp_layer` of `make_arguments(config)`.

    A config.json cannot hold these two, which are classes.
    """
    eps, swiglu = read_trunk(read_part(config).args["encoder"], qk_norm=True).eps, "mlp_layer" in make_arguments(config)
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


def make_size_arguments(vit: Part, trunk: Trunk) -> dict[str, Any]:
    prefix = vit.args["prefix"]
    return {
        "img_size": tuple(vit.args["image_size"]),
        "patch_size": tuple(vit.args["patch_size"]),
        "in_chans": vit.args["channels"],
        "num_classes": vit.args["outputs"],
        "embed_dim": trunk.dim,
        "depth": trunk.depth,
        "num_heads": trunk.heads,
        "class_token": prefix > 0,
        "reg_tokens": max(prefix - 1, 0),
        "no_embed_class": True,
    }


def make_layer_arguments(trunk: Trunk) -> dict[str, Any]:
    swiglu = trunk.act is None
    plain: dict[str, Any] = {
        "mlp_ratio": compute_mlp_ratio(trunk.hidden * (2 if swiglu else 1), trunk.dim),
        "qk_norm": trunk.qk_norm is not None,
        "act_layer": find_act_name(trunk),
        # In timm 0 means no scale, and None the default of the architecture. The weights replace the number.
        "init_values": 0.0 if trunk.scale is None else trunk.scale or INITIAL_SCALE,
        "final_norm": trunk.final_norm,
    }
    if trunk.eps != 1e-6:
        plain["norm_layer"] = partial(nn.LayerNorm, eps=trunk.eps)
    if swiglu:
        from timm.layers.mlp import SwiGLUPacked

        plain["mlp_layer"] = SwiGLUPacked
    return plain


def find_act_name(trunk: Trunk) -> str:
    """Return timm's name of the activation; "" if it has none."""
    act = read_part(ACTS["silu"]) if trunk.act is None else trunk.act
    return next((name for name, value in ACTS.items() if read_part(value) == act), "")


def make_pool_arguments(vit: Part, trunk: Trunk) -> tuple[dict[str, Any], list[Part], list[str]]:
    """Return timm's arguments for the pool, its norms, and a message for each setting that timm does not support."""
    pool = read_part(vit.args["pool"])
    norm = read_part(pool.args["norm"]) if "norm" in pool.args else None
    match pool.kind:
        case kind if kind is First:
            return {"global_pool": "token", "fc_norm": False}, [], []
        case kind if kind is Mean and norm and norm.kind is nn.Identity:
            return {"global_pool": "avg", "fc_norm": False}, [], []
        case kind if kind is Mean and norm:
            problems = ["pool must be without a norm where the encoder has a final one"] if trunk.final_norm else []
            return {"global_pool": "avg", "fc_norm": True, "final_norm": True}, [norm], problems
        case kind if kind is Attend and norm:
            arguments = {"global_pool": "map", "fc_norm": False, "pool_include_prefix": vit.args["prefix"] > 0}
            return arguments, [norm], find_attend_problems(pool, trunk)
    return {}, [], ["pool must be First, Mean or Attend"]


def find_attend_problems(pool: Part, trunk: Trunk) -> list[str]:
    """Return a problem if the pool differs from the blocks, whose heads and MLP timm gives to it."""
    mlp = read_part(pool.args["mlp"])
    hidden = trunk.hidden * (2 if trunk.act is None else 1)
    alike = pool.args["heads"] == trunk.heads and mlp.kind is MLP and int(trunk.dim * mlp.args["ratio"]) == hidden
    if alike and read_part(mlp.args["act"]) == (trunk.act or read_part(ACTS["silu"])):
        return []
    return ["pool must have the heads and the MLP of the blocks"]
