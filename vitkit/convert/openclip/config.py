"""The image tower in a model_cfg of OpenCLIP as the config of a ViT, and back. Its outputs are the embedding.

Patch dropout and other values for training are not read. Sizes are (h, w).
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

# Values of names that a vision_cfg leaves out: the defaults of open_clip 3.3's CLIPVisionCfg.
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
# Options of other blocks than the default ones.
CUSTOM = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")
# Values of names that a preprocess_cfg leaves out.
PREPROCESS: Mapping[str, Any] = {
    "size": 224,
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
UNTYPED = ("layers", "image_size", "patch_size")  # may be of other types, or have checks of their own
EPS = 1e-5  # of torch's LayerNorm


def read_config(state: Mapping[str, Tensor], openclip_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the tower's ViT.

    Args: openclip_config: a model_cfg, with embed_dim, vision_cfg and quick_gelu.
    Raises: ValueError that lists every setting that vitkit's ViT does not support.
    """
    vision = {**VISION, **openclip_config["vision_cfg"]}
    if vision["timm_model_name"]:
        return read_trunk_config(select_image_tower(state), openclip_config)
    config_slots.refuse_problems("the image tower of this model", find_image_problems(vision, openclip_config))
    eps, norm_in_pool, width = (vision["norm_kwargs"] or {}).get("eps", EPS), has_norm_in_pool(vision), vision["width"]
    norm = {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": eps}}
    act = {"class_path": "torch.nn.GELU", "init_args": vision["act_kwargs"] or {}}
    args = {"ratio": vision["mlp_ratio"], "act": "vitkit.nn.QuickGELU" if openclip_config.get("quick_gelu") else act}
    mlp = {"class_path": "vitkit.nn.MLP", "init_args": args}
    heads, scale = width // vision["head_width"], vision["ls_init_value"]
    encoder = config_slots.make_encoder_config(width, vision["layers"], heads, eps=eps, mlp=mlp, scale=scale)
    encoder["init_args"]["final_norm"] = not norm_in_pool
    mean = {"class_path": "vitkit.nn.Mean", "init_args": {"norm": norm} if norm_in_pool else {}}
    model_args = {
        "encoder": encoder,
        "image_size": [*config_slots.parse_size(vision["image_size"], "image_size")],
        "patch_size": [*config_slots.parse_size(vision["patch_size"], "patch_size")],
        "outputs": openclip_config["embed_dim"],
        "head": config_slots.PROJECTION,
        "table": {"class_path": "vitkit.nn.Learned", "init_args": {"resample": "vitkit.nn.bicubic_antialias"}},
        "pool": mean if vision["pool_type"] == "avg" else {"class_path": "vitkit.nn.First"},
    }
    if not vision["no_ln_pre"]:
        model_args["pre_norm"] = norm
    return {"class_path": "vitkit.models.ViT", "init_args": model_args}


def find_image_problems(vision: Mapping[str, Any], openclip_config: Mapping[str, Any]) -> list[str]:
    """Return a message for each setting of an image tower that a ViT does not support."""
    defaults = {name: value for name, value in VISION.items() if name not in UNTYPED} | {"embed_dim": 512}
    if problems := config_slots.list_type_errors({**vision, "embed_dim": openclip_config["embed_dim"]}, defaults):
        return problems
    problems = config_slots.list_failures(
        {
            f"layers must be one number, not a ResNet's, got layers={vision['layers']}": isinstance(
                vision["layers"], int
            ),
            "attentional_pool must be left out": not vision["attentional_pool"],
            f"pool_type must be tok or avg, got pool_type={vision['pool_type']}": vision["pool_type"] in ("tok", "avg"),
            **make_block_checks(vision, openclip_config),
            f"head_width must divide width, got {vision['head_width']} and {vision['width']}": (
                vision["width"] % vision["head_width"] == 0
            ),
        }
    )
    try:
        config_slots.compute_grid(vision["image_size"], vision["patch_size"])
    except ValueError as error:
        problems.append(str(error))
    return problems


def make_block_checks(tower: Mapping[str, Any], openclip_config: Mapping[str, Any]) -> dict[str, object]:
    """Return the rules of the blocks of either tower, and whether they hold."""
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
            acts.keys() <= {"approximate"} and not (acts and openclip_config.get("quick_gelu"))
        ),
    }


def has_norm_in_pool(vision: Mapping[str, Any]) -> bool:
    """Return whether the last norm is applied to the mean. For the CLS token its place makes no difference."""
    return vision["final_ln_after_pool"] and vision["pool_type"] == "avg"


def read_trunk_config(state: Mapping[str, Tensor], openclip_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the ViT of a tower that is a model of timm."""
    config_slots.refuse_problems(
        "this tower", ["timm_proj must be linear or none"] if "head.mlp.fc1.weight" in state else []
    )
    config = timm_config.read_config(select_below(state, "trunk."), read_trunk_facts(openclip_config))
    if (projection := state.get("head.proj.weight")) is not None:
        config["init_args"]["outputs"] = len(projection)
        if "head.proj.bias" not in state:
            config["init_args"]["head"] = config_slots.PROJECTION
    return config


def read_trunk_facts(openclip_config: Mapping[str, Any]) -> timm_config.Facts:
    """Return the facts of the model of timm that open_clip would create; nothing is allocated."""
    from timm import create_model, is_model

    vision = {**VISION, **openclip_config["vision_cfg"]}
    if not is_model(name := str(vision["timm_model_name"])):  # create_model would download hf-hub:NAME
        raise ValueError(f"timm_model_name must be a model of timm, got timm_model_name={name:.80}")
    outputs = openclip_config["embed_dim"] if not vision["timm_proj"] else 0
    with torch.device("meta"):
        if vision["timm_proj"] in ("linear", "mlp"):
            model: Any = create_model(vision["timm_model_name"])
            model.reset_classifier(0, **({"global_pool": vision["timm_pool"]} if vision["timm_pool"] else {}))
        else:
            model = create_model(vision["timm_model_name"], num_classes=outputs, global_pool=vision["timm_pool"])
    return timm_config.read_facts(model)


def select_image_tower(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the image tower of a model with both towers; an image tower alone is returned as it is."""
    return select_below(state, "visual.") or dict(state)


def select_below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def read_preprocess_cfg(cfg: Mapping[str, Any]) -> tuple[Preprocess, tuple[str, ...]]:
    """Return the preprocessing of a preprocess_cfg, and a note for each difference from it. Raises: ValueError."""
    values = {**PREPROCESS, **{name: value for name, value in cfg.items() if value is not None}}
    defaults = {name: value for name, value in PREPROCESS.items() if name != "size"}
    config_slots.refuse_problems("preprocess_cfg", config_slots.list_type_errors(values, defaults))
    mode = values["resize_mode"]
    if mode not in ("shortest", "squash"):
        raise ValueError(f"resize_mode must be shortest or squash, got resize_mode={mode!r:.80}")
    size, interpolation = config_slots.parse_size(values["size"], "size"), values["interpolation"]
    preprocess = Preprocess(size, tuple(values["mean"]), tuple(values["std"]), interpolation)
    return preprocess, (config_slots.IMPORT_STRETCH_NOTE,) if mode == "squash" else ()


class TowerTarget(NamedTuple):
    """The parts of a ViT that is written as an image tower of OpenCLIP.

    Args: args: of the ViT; norm_in_pool: whether its last norm is in the pool, and not in the encoder.
    """

    args: Mapping[str, Any]
    trunk: Trunk
    norm_in_pool: bool

    @property
    def grid(self) -> tuple[int, int]:
        return config_slots.compute_grid(self.args["image_size"], self.args["patch_size"])

    @property
    def table(self) -> Part:
        return read_part(self.args["table"])


def write_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model_cfg with the image tower alone.

    Raises: ValueError that lists every setting that no image tower of OpenCLIP supports.
    """
    target = read_tower_target(config)
    args, trunk = target.args, target.trunk
    vision: dict[str, Any] = {
        "layers": trunk.depth,
        "width": trunk.dim,
        "head_width": trunk.dim // trunk.heads,
        "mlp_ratio": config_slots.compute_mlp_ratio(trunk.hidden, trunk.dim),
        "image_size": [*args["image_size"]],
        "patch_size": [*args["patch_size"]],
        "no_ln_pre": read_part(args["pre_norm"]).kind is nn.Identity,
        "pool_type": "avg" if read_part(args["pool"]).kind is Mean else "tok",
        "final_ln_after_pool": target.norm_in_pool,
    }
    vision |= make_block_options(trunk)
    quick_gelu = find_openclip_act(trunk) == "quick"
    return {"embed_dim": args["outputs"] or trunk.dim, "vision_cfg": vision, "quick_gelu": quick_gelu}


def make_block_options(trunk: Trunk) -> dict[str, Any]:
    """Return the values of the blocks of either tower that differ from OpenCLIP's defaults."""
    options: dict[str, Any] = {}
    if trunk.scale is not None:
        options["ls_init_value"] = trunk.scale
    if trunk.eps != EPS:
        options["norm_kwargs"] = {"eps": trunk.eps}
    if find_openclip_act(trunk) == "tanh":
        options["act_kwargs"] = {"approximate": "tanh"}
    return options


def read_tower_target(config: Mapping[str, Any]) -> TowerTarget:
    """Return the parts of a ViT.

    Raises: ValueError that lists every setting that no image tower of OpenCLIP supports.
    """
    kind, args = read_part(config)
    if kind is not ViT:
        raise ValueError(f"config must be of a ViT, got {kind.__name__}")
    trunk, pre_norm, pool = read_trunk(args["encoder"]), read_part(args["pre_norm"]), read_part(args["pool"])
    pool_norm = read_part(pool.args.get("norm", nn.Identity)) if pool.kind is Mean else read_part(nn.Identity)
    norms = [norm for norm in (pre_norm, pool_norm) if norm.kind is not nn.Identity]
    target = TowerTarget(args, trunk, pool_norm in norms)
    checks = {
        f"prefix must be 1, got prefix={args['prefix']}": args["prefix"] == 1,
        "head must be torch.nn.Linear": config_slots.is_linear(read_part(args["head"])),
        f"channels must be 3, got channels={args['channels']}": args["channels"] == 3,
        f"pool must be First or Mean, got {pool.kind.__name__}": pool.kind in (First, Mean),
        "there must be a norm after the blocks, in the encoder or in Mean": trunk.final_norm != target.norm_in_pool,
        "norms must be LayerNorm, all with one epsilon": (
            all(config_slots.is_layer_norm(norm) and norm.args["eps"] == trunk.eps for norm in norms)
        ),
        f"table must be Learned or Sinusoidal, got {target.table.kind.__name__}": (
            target.table.kind in (Learned, Sinusoidal)
        ),
        "mlp must be MLP with torch.nn.GELU or vitkit.nn.QuickGELU": find_openclip_act(trunk) != "",
    }
    problems = [*trunk.problems, *config_slots.list_failures(checks)]
    config_slots.refuse_problems("the export to OpenCLIP's image tower", problems)
    return target


def find_openclip_act(trunk: Trunk) -> str:
    """Return the kind of activation: gelu, tanh or quick; "" for another."""
    acts = {"gelu": read_part(nn.GELU), "tanh": Part(nn.GELU, {"approximate": "tanh"}), "quick": read_part(QuickGELU)}
    return next((name for name, act in acts.items() if act == trunk.act), "")
