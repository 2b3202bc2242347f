"""OpenCLIP's model config as the config of a ViT whose outputs are the axes of the embedding.

Only its image tower is read. Patch dropout and what else belongs to training is not. Sizes are (h, w).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitkit.convert import config_slots
from vitkit.convert.config_slots import Part, Trunk, read_part, read_trunk
from vitkit.convert.timm import config as timm_config
from vitkit.data.preprocess import Preprocess
from vitkit.models import ViT
from vitkit.nn import First, Learned, Mean, QuickGELU, Sinusoidal

# What a vision_cfg without the name means: the defaults of open_clip 3.3's CLIPVisionCfg.
VISION: Mapping[str, Any] = {
    "layers": 12,
    "width": 768,
    "head_width": 64,
    "mlp_ratio": 4.0,
    "patch_size": 16,
    "image_size": 224,
    "ls_init_value": None,
    "attentional_pool": False,
    "no_ln_pre": False,
    "final_ln_after_pool": False,
    "pool_type": "tok",
    "act_kwargs": None,
    "norm_kwargs": None,
    "block_type": None,
    "timm_model_name": None,
    "timm_pool": "avg",
    "timm_proj": "linear",
}


CUSTOM = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")


PICTURES: Mapping[str, Any] = {
    "size": 224,
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}


OTHERWISE = ("layers", "image_size", "patch_size")  # other kinds are right too, or have a rule of their own


EPS = 1e-5  # of torch's LayerNorm


def read_config(state: Mapping[str, Tensor], told: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the tower's ViT. Args: told: the model's config, with embed_dim, vision_cfg and quick_gelu.

    Raises: ValueError with everything that vitkit's ViT cannot hold.
    """
    vision = {**VISION, **told["vision_cfg"]}
    if vision["timm_model_name"]:
        return describe_trunk(select_image_tower(state), told)
    config_slots.refuse_problems("the image tower of this model", problems(vision, told))
    eps, after, width = (vision["norm_kwargs"] or {}).get("eps", EPS), normed_after(vision), vision["width"]
    norm = {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": eps}}
    act = {"class_path": "torch.nn.GELU", "init_args": vision["act_kwargs"] or {}}
    args = {"ratio": vision["mlp_ratio"], "act": "vitkit.nn.QuickGELU" if told.get("quick_gelu") else act}
    mlp = {"class_path": "vitkit.nn.MLP", "init_args": args}
    heads, scale = width // vision["head_width"], vision["ls_init_value"]
    encoder = config_slots.make_encoder_config(width, vision["layers"], heads, eps=eps, mlp=mlp, scale=scale)
    encoder["init_args"]["final_norm"] = not after
    mean = {"class_path": "vitkit.nn.Mean", "init_args": {"norm": norm} if after else {}}
    model = {
        "encoder": encoder,
        "image_size": [*config_slots.parse_size(vision["image_size"], "image_size")],
        "patch_size": [*config_slots.parse_size(vision["patch_size"], "patch_size")],
        "outputs": told["embed_dim"],
        "head": config_slots.PROJECTION,
        "table": {"class_path": "vitkit.nn.Learned", "init_args": {"resample": "vitkit.nn.bicubic_antialias"}},
        "pool": mean if vision["pool_type"] == "avg" else {"class_path": "vitkit.nn.First"},
    }
    if not vision["no_ln_pre"]:
        model["pre_norm"] = norm
    return {"class_path": "vitkit.models.ViT", "init_args": model}


def problems(vision: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    plain = {name: value for name, value in VISION.items() if name not in OTHERWISE}
    if wrong := config_slots.list_type_errors({**vision, "embed_dim": told["embed_dim"]}, {**plain, "embed_dim": 512}):
        return wrong
    reasons = config_slots.list_failures(
        {
            f"layers must be one number, not a ResNet's, got layers={vision['layers']}": isinstance(
                vision["layers"], int
            ),
            "attentional_pool must be left out": not vision["attentional_pool"],
            f"pool_type must be tok or avg, got pool_type={vision['pool_type']}": vision["pool_type"] in ("tok", "avg"),
            **blocks(vision, told),
            f"head_width must divide width, got {vision['head_width']} and {vision['width']}": (
                vision["width"] % vision["head_width"] == 0
            ),
        }
    )
    try:
        config_slots.compute_grid(vision["image_size"], vision["patch_size"])
    except ValueError as error:
        reasons.append(str(error))
    return reasons


def blocks(tower: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, object]:
    """Rules of the blocks of either tower, and whether they hold."""
    acts, norms = tower["act_kwargs"] or {}, tower["norm_kwargs"] or {}
    if not (isinstance(acts, Mapping) and isinstance(norms, Mapping)):
        return {f"act_kwargs and norm_kwargs must hold names and values, got {acts!r:.80}, {norms!r:.80}": False}
    custom = [name for name in CUSTOM if tower.get(name)]
    return {
        f"blocks must be the default ones, got {', '.join(custom) or tower['block_type']}": (
            not custom and tower["block_type"] in (None, "default")
        ),
        f"norm_kwargs may hold eps, got {norms}": norms.keys() <= {"eps"},
        f"act_kwargs may hold GELU's approximate, got {acts}": (
            acts.keys() <= {"approximate"} and not (acts and told.get("quick_gelu"))
        ),
    }


def normed_after(vision: Mapping[str, Any]) -> bool:
    """Whether the last norm reads the mean. Of the CLS token alone it gives the same before and after the pool."""
    return vision["final_ln_after_pool"] and vision["pool_type"] == "avg"


def describe_trunk(held: Mapping[str, Tensor], told: Mapping[str, Any]) -> dict[str, Any]:
    config_slots.refuse_problems(
        "this tower", ["timm_proj must be linear or none"] if "head.mlp.fc1.weight" in held else []
    )
    config = timm_config.read_config(within(held, "trunk."), read_trunk_facts(told))
    if (projection := held.get("head.proj.weight")) is not None:
        config["init_args"]["outputs"] = len(projection)
        if "head.proj.bias" not in held:
            config["init_args"]["head"] = config_slots.PROJECTION
    return config


def read_trunk_facts(told: Mapping[str, Any]) -> timm_config.Facts:
    """Of the trunk that open_clip would build; nothing is allocated."""
    from timm import create_model, is_model

    vision = {**VISION, **told["vision_cfg"]}
    if not is_model(name := str(vision["timm_model_name"])):  # create_model would fetch what hf-hub: names
        raise ValueError(f"timm_model_name must be a model of timm, got timm_model_name={name:.80}")
    outputs = told["embed_dim"] if not vision["timm_proj"] else 0
    with torch.device("meta"):
        if vision["timm_proj"] in ("linear", "mlp"):
            model: Any = create_model(vision["timm_model_name"])
            model.reset_classifier(0, **({"global_pool": vision["timm_pool"]} if vision["timm_pool"] else {}))
        else:
            model = create_model(vision["timm_model_name"], num_classes=outputs, global_pool=vision["timm_pool"])
    return timm_config.read_facts(model)


def select_image_tower(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a whole model the image tower; a tower itself as it is."""
    whole = any(name.startswith("visual.") for name in state)
    kept = {name: tensor for name, tensor in state.items() if name.startswith("visual.") or not whole}
    return {name.removeprefix("visual."): tensor for name, tensor in kept.items()}


def within(state: Mapping[str, Tensor], stem: str) -> dict[str, Tensor]:
    return {name.removeprefix(stem): tensor for name, tensor in state.items() if name.startswith(stem)}


def read_preprocess_cfg(cfg: Mapping[str, Any]) -> tuple[Preprocess, tuple[str, ...]]:
    """Of open_clip's preprocess_cfg, and what is done otherwise here, a line each. Raises: ValueError."""
    values = {**PICTURES, **{name: value for name, value in cfg.items() if value is not None}}
    config_slots.refuse_problems(
        "preprocess_cfg",
        config_slots.list_type_errors(values, {key: PICTURES[key] for key in PICTURES if key != "size"}),
    )
    mode = values["resize_mode"]
    if mode not in ("shortest", "squash"):
        raise ValueError(f"resize_mode must be shortest or squash, got resize_mode={mode!r:.80}")
    size, interpolation = config_slots.parse_size(values["size"], "size"), values["interpolation"]
    found = Preprocess(size, tuple(values["mean"]), tuple(values["std"]), interpolation)
    return found, (config_slots.IMPORT_STRETCH_NOTE,) if mode == "squash" else ()


class TowerArguments(NamedTuple):
    """What a ViT says of itself. Args: normed_after: whether its last norm reads the mean, in the pool."""

    args: Mapping[str, Any]
    trunk: Trunk
    normed_after: bool

    @property
    def grid(self) -> tuple[int, int]:
        return config_slots.compute_grid(self.args["image_size"], self.args["patch_size"])

    @property
    def table(self) -> Part:
        return read_part(self.args["table"])


def write_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's config there, of which only the image tower is known.

    Raises: ValueError with everything that no tower there can hold.
    """
    into = read_tower_arguments(config)
    args, body = into.args, into.trunk
    vision: dict[str, Any] = {
        "layers": body.depth,
        "width": body.dim,
        "head_width": body.dim // body.heads,
        "mlp_ratio": config_slots.compute_ratio(body.hidden, body.dim),
        "image_size": [*args["image_size"]],
        "patch_size": [*args["patch_size"]],
        "no_ln_pre": read_part(args["pre_norm"]).kind is nn.Identity,
        "pool_type": "avg" if read_part(args["pool"]).kind is Mean else "tok",
        "final_ln_after_pool": into.normed_after,
    }
    cfg = vision | further(body)
    return {"embed_dim": args["outputs"] or body.dim, "vision_cfg": cfg, "quick_gelu": acted(body) == "quick"}


def further(body: Trunk) -> dict[str, Any]:
    """What is said of the blocks of either tower where it is not what they have there by themselves."""
    told: dict[str, Any] = {}
    if body.scale is not None:
        told["ls_init_value"] = body.scale
    if body.eps != EPS:
        told["norm_kwargs"] = {"eps": body.eps}
    if acted(body) == "tanh":
        told["act_kwargs"] = {"approximate": "tanh"}
    return told


def read_tower_arguments(config: Mapping[str, Any]) -> TowerArguments:
    """Raises: ValueError with everything that no tower there can hold."""
    kind, args = read_part(config)
    if kind is not ViT:
        raise ValueError(f"config must be of a ViT, got {kind.__name__}")
    body, before, pool = read_trunk(args["encoder"]), read_part(args["pre_norm"]), read_part(args["pool"])
    after = read_part(pool.args.get("norm", nn.Identity)) if pool.kind is Mean else read_part(nn.Identity)
    norms = [norm for norm in (before, after) if norm.kind is not nn.Identity]
    into = TowerArguments(args, body, after in norms)
    checks = {
        f"prefix must be 1, got prefix={args['prefix']}": args["prefix"] == 1,
        "head must be torch.nn.Linear": config_slots.is_linear(read_part(args["head"])),
        f"channels must be 3, got channels={args['channels']}": args["channels"] == 3,
        f"pool must be First or Mean, got {pool.kind.__name__}": pool.kind in (First, Mean),
        "there must be a norm after the blocks, in the encoder or in Mean": body.final_norm != into.normed_after,
        "norms must be LayerNorm, all with one epsilon": (
            all(config_slots.is_layer_norm(norm) and norm.args["eps"] == body.eps for norm in norms)
        ),
        f"table must be Learned or Sinusoidal, got {into.table.kind.__name__}": (
            into.table.kind in (Learned, Sinusoidal)
        ),
        "mlp must be MLP with torch.nn.GELU or vitkit.nn.QuickGELU": acted(body) != "",
    }
    config_slots.refuse_problems(
        "in OpenCLIP's image tower this model", [*body.problems, *config_slots.list_failures(checks)]
    )
    return into


def acted(body: Trunk) -> str:
    """gelu, tanh or quick; nothing for another."""
    known = {"gelu": read_part(nn.GELU), "tanh": Part(nn.GELU, {"approximate": "tanh"}), "quick": read_part(QuickGELU)}
    return next((name for name, act in known.items() if act == body.act), "")
