"""A model of vitkit as a config.json of Hugging Face: which class there holds it, and what none can."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from vitkit.convert import parts
from vitkit.convert.hf_config import ACTS, SQUARE, gated
from vitkit.convert.parts import Part, Trunk, part, trunk
from vitkit.models import MAE, ViT
from vitkit.nn import First, Learned, Mean, Sinusoidal


class Layout(NamedTuple):
    """The class there, and what a model of vitkit says of itself. Args: decoder: of an MAE."""

    kind: str
    name: str
    args: Mapping[str, Any]
    trunk: Trunk
    decoder: Trunk | None

    @property
    def grid(self) -> tuple[int, int]:
        return parts.grid(self.args["image_size"], self.args["patch_size"])

    def table(self, name: str) -> Part:
        return part(self.args[name])


def told(config: Mapping[str, Any], classes: Sequence[str] = ()) -> dict[str, Any]:
    """The config.json of a model of vitkit.

    Raises: ValueError with everything that no class there can hold.
    """
    into = layout(config)
    args, held = into.args, {"": into.trunk, "decoder_": into.decoder}
    said: dict[str, Any] = {"architectures": [into.name], "model_type": into.kind}
    for of, body in held.items():
        if body is not None:
            said |= {f"{of}hidden_size": body.dim, f"{of}num_hidden_layers": body.depth}
            said |= {f"{of}num_attention_heads": body.heads} | widths(into.kind, of, body)
    said |= {name: one_or_two(args[name]) for name in ("image_size", "patch_size")}
    said |= {"num_channels": args["channels"], "qkv_bias": True, "layer_norm_eps": into.trunk.eps}
    said["hidden_act"] = act(into.trunk) or "gelu"
    if into.kind == "dinov2_with_registers":
        said["num_register_tokens"] = args["prefix"] - 1
    if into.decoder is not None:
        said |= {"mask_ratio": args["ratio"], "norm_pix_loss": args["norm_pix"]}
    elif outputs := args["outputs"]:
        names = [*classes] or [f"LABEL_{index}" for index in range(outputs)]
        if len(names) != outputs:
            raise ValueError(f"classes must be as many as outputs, got {len(names)} for outputs={outputs}")
        said["id2label"] = {str(index): name for index, name in enumerate(names)}
        said["label2id"] = {name: index for index, name in enumerate(names)}
    return said


def widths(kind: str, of: str, body: Trunk) -> dict[str, Any]:
    if not kind.startswith("dinov2"):
        return {f"{of}intermediate_size": body.hidden}
    return {"mlp_ratio": times(body), "use_swiglu_ffn": body.act is None, "layerscale_value": body.scale}


def one_or_two(size: Sequence[int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else [*size]


def layout(config: Mapping[str, Any]) -> Layout:
    """Raises: ValueError with everything that no class there can hold."""
    kind, args = part(config)
    if kind not in (ViT, MAE):
        raise ValueError(f"config must be of a ViT or an MAE, got {kind.__name__}")
    body = trunk(args["encoder"])
    if kind is MAE:
        decoder = trunk(args["decoder"])
        into = Layout("vit_mae", "ViTMAEForPreTraining", args, body, decoder)
        reasons = [*dict.fromkeys((*body.problems, *decoder.problems)), *pretraining(into, decoder)]
    else:
        into = into_one(args, body)
        reasons = [*body.problems, *problems(into)]
    parts.refuse(f"in {into.name} this model", reasons)
    return into


def into_one(args: Mapping[str, Any], body: Trunk) -> Layout:
    """A layer scale makes it a DINOv2, a second prefix token a DeiT or registers."""
    several = args["prefix"] > 1
    if body.scale is not None:
        kind, name = ("dinov2_with_registers", "Dinov2WithRegisters") if several else ("dinov2", "Dinov2")
    else:
        kind, name = ("deit", "DeiT") if several else ("vit", "ViT")
    return Layout(kind, name + ("ForImageClassification" if args["outputs"] else "Model"), args, body, None)


def problems(into: Layout) -> list[str]:
    """Of a ViT."""
    args, body, prefix = into.args, into.trunk, into.args["prefix"]
    pool, table = part(args["pool"]), part(args["table"])
    dino = into.kind.startswith("dinov2")
    # Without a head they give all tokens, and pooling is up to the caller.
    average = pool.kind is Mean and part(pool.args["norm"]).kind is nn.Identity and not args["outputs"]
    return shared(body) + parts.failing(
        {
            f"prefix must be 1 or 2, with a layer scale any but 0, got prefix={prefix}": (
                prefix in (1, 2) or (dino and prefix > 2)
            ),
            "pre_norm must be left out": part(args["pre_norm"]).kind is nn.Identity,
            "head must be torch.nn.Linear": parts.is_linear(part(args["head"])),
            f"pool must be First, got {pool.kind.__name__}": pool.kind is First or average,
            f"table must be Learned or Sinusoidal, got {table.kind.__name__}": table.kind in (Learned, Sinusoidal),
            "mlp must be MLP without a layer scale, got SwiGLU": dino or body.act is not None,
            SQUARE.format(into.grid): not dino or into.grid[0] == into.grid[1],
            f"outputs must be 0 with a layer scale, got outputs={args['outputs']}": not (dino and args["outputs"]),
            f"mlp must be a whole number of times as wide as the model, got {body.hidden} for dim={body.dim}": (
                not dino or times(body) is not None
            ),
        }
    )


def pretraining(into: Layout, decoder: Trunk) -> list[str]:
    """Of an MAE."""
    args, body, grid = into.args, into.trunk, into.grid
    rows, columns = args["patch_size"]
    tables = {part(args[name]).kind for name in ("table", "decoder_table")}
    return [*dict.fromkeys(shared(body) + shared(decoder))] + parts.failing(
        {
            f"prefix must be 1, got prefix={args['prefix']}": args["prefix"] == 1,
            f"patch_size must be square, got patch_size={rows, columns}": rows == columns,
            # Its constructor fills both tables as if N were a square, whatever the image.
            f"the number of patches must be a square, got a grid of {grid}": (
                math.isqrt(math.prod(grid)) ** 2 == math.prod(grid)
            ),
            "encoder and decoder must be without a layer scale": body.scale is None and decoder.scale is None,
            "encoder and decoder must have MLPs, got SwiGLU": body.act is not None and decoder.act is not None,
            "encoder and decoder must have the same act": body.act == decoder.act,
            "encoder and decoder must have the same epsilon": body.eps == decoder.eps,
            "table and decoder_table must be Learned or Sinusoidal": tables <= {Learned, Sinusoidal},
        }
    )


def shared(body: Trunk) -> list[str]:
    return parts.failing(
        {
            "final_norm must be True": body.final_norm,
            f"act must be one of {', '.join(ACTS)}": body.act is None or act(body) is not None,
        }
    )


def act(body: Trunk) -> str | None:
    return next((name for name, value in ACTS.items() if body.act == part(value)), None)


def times(body: Trunk) -> int | None:
    """DINOv2's mlp_ratio, which is whole."""
    wide = gated if body.act is None else int
    return next((factor for factor in range(1, 65) if wide(body.dim * factor) == body.hidden), None)
