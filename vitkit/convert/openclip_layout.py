"""A model of vitkit as OpenCLIP's image tower: its config there, and what no tower can hold."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from vitkit.convert import parts
from vitkit.convert.openclip_config import EPS
from vitkit.convert.parts import Part, Trunk, part, trunk
from vitkit.models import ViT
from vitkit.nn import First, Learned, Mean, QuickGELU, Sinusoidal


class Layout(NamedTuple):
    """What a ViT says of itself. Args: normed_after: whether its last norm reads the mean, in the pool."""

    args: Mapping[str, Any]
    trunk: Trunk
    normed_after: bool

    @property
    def grid(self) -> tuple[int, int]:
        return parts.grid(self.args["image_size"], self.args["patch_size"])

    @property
    def table(self) -> Part:
        return part(self.args["table"])


def told(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's config there, of which only the image tower is known.

    Raises: ValueError with everything that no tower there can hold.
    """
    into = layout(config)
    args, body = into.args, into.trunk
    vision: dict[str, Any] = {
        "layers": body.depth,
        "width": body.dim,
        "head_width": body.dim // body.heads,
        "mlp_ratio": parts.ratio(body.hidden, body.dim),
        "image_size": [*args["image_size"]],
        "patch_size": [*args["patch_size"]],
        "no_ln_pre": part(args["pre_norm"]).kind is nn.Identity,
        "pool_type": "avg" if part(args["pool"]).kind is Mean else "tok",
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


def layout(config: Mapping[str, Any]) -> Layout:
    """Raises: ValueError with everything that no tower there can hold."""
    kind, args = part(config)
    if kind is not ViT:
        raise ValueError(f"config must be of a ViT, got {kind.__name__}")
    body, before, pool = trunk(args["encoder"]), part(args["pre_norm"]), part(args["pool"])
    after = part(pool.args.get("norm", nn.Identity)) if pool.kind is Mean else part(nn.Identity)
    norms = [norm for norm in (before, after) if norm.kind is not nn.Identity]
    into = Layout(args, body, after in norms)
    checks = {
        f"prefix must be 1, got prefix={args['prefix']}": args["prefix"] == 1,
        "head must be torch.nn.Linear": parts.is_linear(part(args["head"])),
        f"channels must be 3, got channels={args['channels']}": args["channels"] == 3,
        f"pool must be First or Mean, got {pool.kind.__name__}": pool.kind in (First, Mean),
        "there must be a norm after the blocks, in the encoder or in Mean": body.final_norm != into.normed_after,
        "norms must be LayerNorm, all with one epsilon": (
            all(parts.is_layer_norm(norm) and norm.args["eps"] == body.eps for norm in norms)
        ),
        f"table must be Learned or Sinusoidal, got {into.table.kind.__name__}": (
            into.table.kind in (Learned, Sinusoidal)
        ),
        "mlp must be MLP with torch.nn.GELU or vitkit.nn.QuickGELU": acted(body) != "",
    }
    parts.refuse("in OpenCLIP's image tower this model", [*body.problems, *parts.failing(checks)])
    return into


def acted(body: Trunk) -> str:
    """gelu, tanh or quick; nothing for another."""
    known = {"gelu": part(nn.GELU), "tanh": Part(nn.GELU, {"approximate": "tanh"}), "quick": part(QuickGELU)}
    return next((name for name, act in known.items() if act == body.act), "")
