"""Hugging Face's config.json for ViT, DeiT, ViTMAE and DINOv2, as a config of vitkit.

Dropout and drop path belong to training, and are not read. Sizes are (h, w).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from vitkit.convert import config_slots
from vitkit.convert.config_slots import Part, Trunk, read_part, read_trunk
from vitkit.models import MAE, ViT
from vitkit.nn import First, Learned, Mean, Sinusoidal

# What a config.json without the name means: the defaults of the classes there (transformers 5.24, unchanged since 4.x).
COMMON = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}


VIT = COMMON | {"intermediate_size": 3072, "layer_norm_eps": 1e-12}


DECODER = {
    "decoder_hidden_size": 512,
    "decoder_num_hidden_layers": 8,
    "decoder_num_attention_heads": 16,
    "decoder_intermediate_size": 2048,
    "mask_ratio": 0.75,
    "norm_pix_loss": False,
}


DINO = COMMON | {"mlp_ratio": 4.0, "layer_norm_eps": 1e-6, "layerscale_value": 1.0, "use_swiglu_ffn": False}


FORMATS: Mapping[str, Mapping[str, Any]] = {
    "vit": VIT,
    "deit": VIT,
    "vit_mae": VIT | DECODER,
    "dinov2": DINO | {"patch_size": 14},
    "dinov2_with_registers": DINO | {"num_register_tokens": 4},
}


ACTS: Mapping[str, object] = {
    "gelu": "torch.nn.GELU",
    "quick_gelu": "vitkit.nn.QuickGELU",
    "gelu_pytorch_tanh": {"class_path": "torch.nn.GELU", "init_args": {"approximate": "tanh"}},
    "relu": "torch.nn.ReLU",
}


OTHERWISE = ("image_size", "patch_size", "num_register_tokens")  # two numbers, or 0, are right too


MOST_CLASSES = 1_000_000  # before the tensors tell how many there are: a config may speak of any number


# transformers' DINOv2 reads every table as if it were square, and would scramble this one.
SQUARE = "the grid of DINOv2 must be square, got {}"


class Architecture(NamedTuple):
    """A class there.

    Args:
        base: what the names of the model proper start with in its file.
        head: the name of what is the head here.
        left_out: patterns of names, and why they are.
    """

    kind: str
    base: str = ""
    head: str = ""
    left_out: Mapping[str, str] = {}


POOLER = {"pooler.*": "what is pooled here is the CLS token itself"}


MASK = {"embeddings.mask_token": "it is for pretraining"}


BESIDE = {"classifier.*": "it reads CLS and the mean of the patches side by side, and a ViT here pools one of them"}


SECOND = {"distillation_classifier.*": "the outputs are those of cls_classifier, where DeiT averages the two"}


ARCHITECTURES = {
    "ViTModel": Architecture("vit", left_out=POOLER),
    "ViTForImageClassification": Architecture("vit", "vit.", "classifier"),
    "DeiTModel": Architecture("deit", left_out=POOLER),
    "DeiTForImageClassification": Architecture("deit", "deit.", "classifier"),
    "DeiTForImageClassificationWithTeacher": Architecture("deit", "deit.", "cls_classifier", SECOND),
    "ViTMAEModel": Architecture("vit_mae"),
    "ViTMAEForPreTraining": Architecture("vit_mae", "vit."),
    "Dinov2Model": Architecture("dinov2", left_out=MASK),
    "Dinov2ForImageClassification": Architecture("dinov2", "dinov2.", left_out=MASK | BESIDE),
    "Dinov2WithRegistersModel": Architecture("dinov2_with_registers", left_out=MASK),
    "Dinov2WithRegistersForImageClassification": Architecture(
        "dinov2_with_registers", "dinov2_with_registers.", left_out=MASK | BESIDE
    ),
}


def read_config(told: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the ViT or MAE that a config.json speaks of.

    Raises: ValueError with everything that vitkit's models cannot hold.
    """
    values, name = parse_vit_config(told)
    kind = ARCHITECTURES[name].kind
    # transformers smooths where a grid shrinks in one of its classes alone.
    resample = "vitkit.nn.bicubic_antialias" if kind == "dinov2_with_registers" else "vitkit.nn.bicubic"
    table = {"class_path": "vitkit.nn.Learned", "init_args": {"resample": resample}}
    args: dict[str, Any] = {
        "encoder": described(values, ""),
        "image_size": [*config_slots.parse_size(values["image_size"], "image_size")],
        "patch_size": [*config_slots.parse_size(values["patch_size"], "patch_size")],
        "channels": values["num_channels"],
        "prefix": 1 + (kind == "deit") + values.get("num_register_tokens", 0),
        "table": table,
    }
    if name == "ViTMAEForPreTraining":
        more = {"ratio": values["mask_ratio"], "norm_pix": values["norm_pix_loss"], "decoder_table": table}
        args |= {"decoder": described(values, "decoder_"), **more}
        return {"class_path": "vitkit.models.MAE", "init_args": args}
    pool = "vitkit.nn.Mean" if kind == "vit_mae" else "vitkit.nn.First"
    args |= {"outputs": len(classes(told)), "pool": {"class_path": pool}}
    return {"class_path": "vitkit.models.ViT", "init_args": args}


def classes(told: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes; none where there is no head, or where it is left out."""
    if not ARCHITECTURES[parse_vit_config(told)[1]].head:
        return ()
    match told.get("id2label"), told.get("num_labels", 2):
        case Mapping() as names, _ if all(str(key).isdecimal() for key in names):
            return tuple(str(names[key]) for key in sorted(names, key=int))
        case None, int(count) if 0 <= count <= MOST_CLASSES:
            return tuple(f"LABEL_{index}" for index in range(count))
    raise ValueError(f"id2label must hold names by number, got id2label={told.get('id2label')!r:.80}")


def parse_vit_config(told: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """All values, and the name of the class. Raises: ValueError with everything that vitkit's models cannot hold."""
    kind = str(told.get("model_type"))
    if kind not in FORMATS:
        raise ValueError(f"model_type must be one of {', '.join(FORMATS)}, got model_type={kind:.80}")
    values = {**FORMATS[kind], **told}
    config_slots.refuse_problems(
        "config.json",
        config_slots.list_type_errors(values, {k: v for k, v in FORMATS[kind].items() if k not in OTHERWISE}),
    )
    known = [name for name, architecture in ARCHITECTURES.items() if architecture.kind == kind]
    named = told.get("architectures") or ["none"]
    act, width = values["hidden_act"], values.get("head_dim")
    checks = {
        f"architectures must be one of {', '.join(known)}, got {named!r:.80}": (
            isinstance(named, list) and len(named) == 1 and named[0] in known
        ),
        f"hidden_act must be one of {', '.join(ACTS)}, got hidden_act={act!r:.80}": (
            values.get("use_swiglu_ffn", False) or act in ACTS
        ),
        f"head_dim must be hidden_size / num_attention_heads, got head_dim={width!r:.80}": (
            width is None or width == values["hidden_size"] / values["num_attention_heads"]
        ),
    }
    reasons = config_slots.list_failures(checks)
    try:
        rows, columns = config_slots.compute_grid(values["image_size"], values["patch_size"])
        if kind.startswith("dinov2") and rows != columns:
            reasons.append(SQUARE.format((rows, columns)))
    except ValueError as error:
        reasons.append(str(error))
    config_slots.refuse_problems("config.json", reasons)
    return values, named[0]


def described(values: Mapping[str, Any], of: str) -> dict[str, Any]:
    """The config of the encoder, or of the decoder."""
    dim, depth, heads = (values[of + name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    hidden = int(dim * values["mlp_ratio"]) if "mlp_ratio" in values else values[f"{of}intermediate_size"]
    if values.get("use_swiglu_ffn"):
        mlp = {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": config_slots.compute_ratio(gated(hidden), dim)}}
    else:
        args = {"ratio": config_slots.compute_ratio(hidden, dim), "act": ACTS[values["hidden_act"]]}
        mlp = {"class_path": "vitkit.nn.MLP", "init_args": args}
    scale = values.get("layerscale_value")
    return config_slots.make_encoder_config(dim, depth, heads, eps=values["layer_norm_eps"], mlp=mlp, scale=scale)


def gated(hidden: int) -> int:
    """The width of DINOv2's SwiGLU: 2/3, and a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


class ViTArguments(NamedTuple):
    """The class there, and what a model of vitkit says of itself. Args: decoder: of an MAE."""

    kind: str
    name: str
    args: Mapping[str, Any]
    trunk: Trunk
    decoder: Trunk | None

    @property
    def grid(self) -> tuple[int, int]:
        return config_slots.compute_grid(self.args["image_size"], self.args["patch_size"])

    def table(self, name: str) -> Part:
        return read_part(self.args[name])


def write_config(config: Mapping[str, Any], classes: Sequence[str] = ()) -> dict[str, Any]:
    """The config.json of a model of vitkit.

    Raises: ValueError with everything that no class there can hold.
    """
    into = read_vit_arguments(config)
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


def read_vit_arguments(config: Mapping[str, Any]) -> ViTArguments:
    """Raises: ValueError with everything that no class there can hold."""
    kind, args = read_part(config)
    if kind not in (ViT, MAE):
        raise ValueError(f"config must be of a ViT or an MAE, got {kind.__name__}")
    body = read_trunk(args["encoder"])
    if kind is MAE:
        decoder = read_trunk(args["decoder"])
        into = ViTArguments("vit_mae", "ViTMAEForPreTraining", args, body, decoder)
        reasons = [*dict.fromkeys((*body.problems, *decoder.problems)), *pretraining(into, decoder)]
    else:
        into = into_one(args, body)
        reasons = [*body.problems, *problems(into)]
    config_slots.refuse_problems(f"in {into.name} this model", reasons)
    return into


def into_one(args: Mapping[str, Any], body: Trunk) -> ViTArguments:
    """A layer scale makes it a DINOv2, a second prefix token a DeiT or registers."""
    several = args["prefix"] > 1
    if body.scale is not None:
        kind, name = ("dinov2_with_registers", "Dinov2WithRegisters") if several else ("dinov2", "Dinov2")
    else:
        kind, name = ("deit", "DeiT") if several else ("vit", "ViT")
    return ViTArguments(kind, name + ("ForImageClassification" if args["outputs"] else "Model"), args, body, None)


def problems(into: ViTArguments) -> list[str]:
    """Of a ViT."""
    args, body, prefix = into.args, into.trunk, into.args["prefix"]
    pool, table = read_part(args["pool"]), read_part(args["table"])
    dino = into.kind.startswith("dinov2")
    # Without a head they give all tokens, and pooling is up to the caller.
    average = pool.kind is Mean and read_part(pool.args["norm"]).kind is nn.Identity and not args["outputs"]
    return shared(body) + config_slots.list_failures(
        {
            f"prefix must be 1 or 2, with a layer scale any but 0, got prefix={prefix}": (
                prefix in (1, 2) or (dino and prefix > 2)
            ),
            "pre_norm must be left out": read_part(args["pre_norm"]).kind is nn.Identity,
            "head must be torch.nn.Linear": config_slots.is_linear(read_part(args["head"])),
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


def pretraining(into: ViTArguments, decoder: Trunk) -> list[str]:
    """Of an MAE."""
    args, body, grid = into.args, into.trunk, into.grid
    rows, columns = args["patch_size"]
    tables = {read_part(args[name]).kind for name in ("table", "decoder_table")}
    return [*dict.fromkeys(shared(body) + shared(decoder))] + config_slots.list_failures(
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
    return config_slots.list_failures(
        {
            "final_norm must be True": body.final_norm,
            f"act must be one of {', '.join(ACTS)}": body.act is None or act(body) is not None,
        }
    )


def act(body: Trunk) -> str | None:
    return next((name for name, value in ACTS.items() if body.act == read_part(value)), None)


def times(body: Trunk) -> int | None:
    """DINOv2's mlp_ratio, which is whole."""
    wide = gated if body.act is None else int
    return next((factor for factor in range(1, 65) if wide(body.dim * factor) == body.hidden), None)
