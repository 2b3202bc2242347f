"""Hugging Face's config.json for ViT, DeiT, ViTMAE and DINOv2, as a config of vitkit.

Dropout and drop path belong to training, and are not read. Sizes are (h, w).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from vitkit.convert import config_slots
from vitkit.convert.config_slots import MULTILABEL, Part, Trunk, read_part, read_trunk
from vitkit.models import MAE, ViT
from vitkit.nn import First, Learned, Mean, Sinusoidal

# Values of names that a config.json leaves out: the defaults of the classes of transformers 5.24, unchanged since 4.x.
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
# model_type -> its values.
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "vit": VIT,
    "deit": VIT,
    "vit_mae": VIT | DECODER,
    "dinov2": DINO | {"patch_size": 14},
    "dinov2_with_registers": DINO | {"num_register_tokens": 4},
}
# hidden_act -> activation in a config of vitkit.
ACTS: Mapping[str, object] = {
    "gelu": "torch.nn.GELU",
    "quick_gelu": "vitkit.nn.QuickGELU",
    "gelu_pytorch_tanh": {"class_path": "torch.nn.GELU", "init_args": {"approximate": "tanh"}},
    "relu": "torch.nn.ReLU",
}
UNTYPED = ("image_size", "patch_size", "num_register_tokens")  # may also be two numbers, or 0
MAX_CLASSES = 1_000_000  # of num_labels, which is read before the tensors show how many there are
SINGLE_LABEL, REGRESSION = "single_label_classification", "regression"  # the other values of problem_type
# transformers' DINOv2 reads every table as a square, and would scramble this one.
SQUARE = "the grid of DINOv2 must be square, got {}"


class Architecture(NamedTuple):
    """A class of transformers.

    Args:
        kind: its model_type.
        base: the prefix of the model without its head in the names of a file.
        head: the name of the layer that is the head here.
        left_out: patterns of tensors that are dropped -> why.
    """

    kind: str
    base: str = ""
    head: str = ""
    left_out: Mapping[str, str] = {}


POOLER = {"pooler.*": "the CLS token itself is pooled here"}
MASK = {"embeddings.mask_token": "it is for pretraining"}
DINO_HEAD = {"classifier.*": "it reads CLS and the mean of the patches side by side, and a ViT here pools one of them"}
TEACHER_HEAD = {"distillation_classifier.*": "the outputs are of cls_classifier, where DeiT averages the two"}
ARCHITECTURES = {
    "ViTModel": Architecture("vit", left_out=POOLER),
    "ViTForImageClassification": Architecture("vit", "vit.", "classifier"),
    "DeiTModel": Architecture("deit", left_out=POOLER),
    "DeiTForImageClassification": Architecture("deit", "deit.", "classifier"),
    "DeiTForImageClassificationWithTeacher": Architecture("deit", "deit.", "cls_classifier", TEACHER_HEAD),
    "ViTMAEModel": Architecture("vit_mae"),
    "ViTMAEForPreTraining": Architecture("vit_mae", "vit."),
    "Dinov2Model": Architecture("dinov2", left_out=MASK),
    "Dinov2ForImageClassification": Architecture("dinov2", "dinov2.", left_out=MASK | DINO_HEAD),
    "Dinov2WithRegistersModel": Architecture("dinov2_with_registers", left_out=MASK),
    "Dinov2WithRegistersForImageClassification": Architecture(
        "dinov2_with_registers", "dinov2_with_registers.", left_out=MASK | DINO_HEAD
    ),
}


def read_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the ViT or MAE that a config.json describes.

    Raises: ValueError that lists every setting that vitkit's models do not support.
    """
    values, name = parse_vit_config(hf_config)
    kind = ARCHITECTURES[name].kind
    # Only one class of transformers resamples positions with antialias.
    resample = "vitkit.nn.bicubic_antialias" if kind == "dinov2_with_registers" else "vitkit.nn.bicubic"
    table = {"class_path": "vitkit.nn.Learned", "init_args": {"resample": resample}}
    args: dict[str, Any] = {
        "encoder": make_encoder(values),
        "image_size": [*config_slots.parse_size(values["image_size"], "image_size")],
        "patch_size": [*config_slots.parse_size(values["patch_size"], "patch_size")],
        "channels": values["num_channels"],
        "prefix": 1 + (kind == "deit") + values.get("num_register_tokens", 0),
        "table": table,
    }
    if name == "ViTMAEForPreTraining":
        more = {"ratio": values["mask_ratio"], "norm_pix": values["norm_pix_loss"], "decoder_table": table}
        args |= {"decoder": make_encoder(values, "decoder_"), **more}
        return {"class_path": "vitkit.models.MAE", "init_args": args}
    pool = "vitkit.nn.Mean" if kind == "vit_mae" else "vitkit.nn.First"
    args |= {"outputs": len(read_labels(hf_config)[0]), "pool": {"class_path": pool}}
    return {"class_path": "vitkit.models.ViT", "init_args": args}


def read_labels(hf_config: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Return the class names, none where there is no head or it is left out, and whether the model is multilabel.

    Raises: ValueError for a head of regression, whose outputs are no classes.
    """
    if not ARCHITECTURES[parse_vit_config(hf_config)[1]].head:
        return (), False
    match hf_config.get("id2label"), hf_config.get("num_labels", 2):
        case Mapping() as names, _ if all(str(key).isdecimal() for key in names):
            class_names = tuple(str(names[key]) for key in sorted(names, key=int))
        case None, int(count) if 0 <= count <= MAX_CLASSES:
            class_names = tuple(f"LABEL_{index}" for index in range(count))
        case other, _:
            raise ValueError(f"id2label must hold names by number, got id2label={other!r:.80}")
    problem_type = hf_config.get("problem_type")
    # One output without a name is regression by default there; one with a name gets a sigmoid, as several labels do.
    if problem_type == REGRESSION or (problem_type is None and class_names == ("LABEL_0",)):
        raise ValueError(
            f"outputs must be logits of classes, got a head of regression ({problem_type=}, {len(class_names)} "
            "outputs); if they are classes, name them in id2label and correct problem_type"
        )
    if problem_type not in (None, MULTILABEL, SINGLE_LABEL):
        raise ValueError(f"problem_type must be one of {MULTILABEL}, {SINGLE_LABEL}, got {problem_type=!r:.80}")
    return class_names, problem_type == MULTILABEL or len(class_names) == 1


def parse_vit_config(hf_config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return all values with defaults, and the name of the class.

    Raises: ValueError that lists every setting that vitkit's models do not support.
    """
    kind = str(hf_config.get("model_type"))
    if kind not in FORMATS:
        raise ValueError(f"model_type must be one of {', '.join(FORMATS)}, got model_type={kind:.80}")
    values = {**FORMATS[kind], **hf_config}
    defaults = {name: value for name, value in FORMATS[kind].items() if name not in UNTYPED}
    config_slots.refuse_problems("config.json", config_slots.list_type_errors(values, defaults))
    known = [name for name, architecture in ARCHITECTURES.items() if architecture.kind == kind]
    names = hf_config.get("architectures") or ["none"]
    act, width = values["hidden_act"], values.get("head_dim")
    checks = {
        f"architectures must be one of {', '.join(known)}, got {names!r:.80}": (
            isinstance(names, list) and len(names) == 1 and names[0] in known
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
    return values, names[0]


def make_encoder(values: Mapping[str, Any], stem: str = "") -> dict[str, Any]:
    """Return the config of the encoder, or of the decoder, whose values start with `stem`."""
    dim, depth, heads = (values[stem + name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    hidden = int(dim * values["mlp_ratio"]) if "mlp_ratio" in values else values[f"{stem}intermediate_size"]
    if values.get("use_swiglu_ffn"):
        ratio = config_slots.compute_mlp_ratio(compute_swiglu_width(hidden), dim)
        mlp = {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": ratio}}
    else:
        args = {"ratio": config_slots.compute_mlp_ratio(hidden, dim), "act": ACTS[values["hidden_act"]]}
        mlp = {"class_path": "vitkit.nn.MLP", "init_args": args}
    scale = values.get("layerscale_value")
    return config_slots.make_encoder_config(dim, depth, heads, eps=values["layer_norm_eps"], mlp=mlp, scale=scale)


def compute_swiglu_width(hidden: int) -> int:
    """Return the width of DINOv2's SwiGLU: 2/3 of `hidden`, rounded up to a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


class ViTTarget(NamedTuple):
    """The class of transformers that a model of vitkit is written as, with the model's parts.

    Args:
        kind: the model_type.
        name: the class.
        args: the arguments of the model of vitkit.
        decoder: None but for an MAE.
    """

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


def write_config(
    config: Mapping[str, Any], class_names: Sequence[str] = (), multilabel: bool = False
) -> dict[str, Any]:
    """Return the config.json of a model of vitkit.

    Raises: ValueError that lists every setting that no class of transformers supports.
    """
    target = choose_vit_target(config)
    args = target.args
    hf_config: dict[str, Any] = {"architectures": [target.name], "model_type": target.kind}
    for stem, trunk in (("", target.trunk), ("decoder_", target.decoder)):
        if trunk is not None:
            hf_config |= {f"{stem}hidden_size": trunk.dim, f"{stem}num_hidden_layers": trunk.depth}
            hf_config |= {f"{stem}num_attention_heads": trunk.heads} | make_mlp_values(target.kind, stem, trunk)
    hf_config |= {name: shorten_size(args[name]) for name in ("image_size", "patch_size")}
    hf_config |= {"num_channels": args["channels"], "qkv_bias": True, "layer_norm_eps": target.trunk.eps}
    hf_config["hidden_act"] = find_hf_act(target.trunk) or "gelu"
    if target.kind == "dinov2_with_registers":
        hf_config["num_register_tokens"] = args["prefix"] - 1
    if target.decoder is not None:
        hf_config |= {"mask_ratio": args["ratio"], "norm_pix_loss": args["norm_pix"]}
    elif outputs := args["outputs"]:
        names = [*class_names] or [f"LABEL_{index}" for index in range(outputs)]
        if len(names) != outputs:
            raise ValueError(f"classes must be as many as outputs, got {len(names)} for outputs={outputs}")
        hf_config["id2label"] = {str(index): name for index, name in enumerate(names)}
        hf_config["label2id"] = {name: index for index, name in enumerate(names)}
        hf_config |= {"problem_type": MULTILABEL} if multilabel else {}
    return hf_config


def make_mlp_values(kind: str, stem: str, trunk: Trunk) -> dict[str, Any]:
    if not kind.startswith("dinov2"):
        return {f"{stem}intermediate_size": trunk.hidden}
    return {"mlp_ratio": find_mlp_ratio(trunk), "use_swiglu_ffn": trunk.act is None, "layerscale_value": trunk.scale}


def shorten_size(size: Sequence[int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else [*size]


def choose_vit_target(config: Mapping[str, Any]) -> ViTTarget:
    """Return the class of transformers for a config of vitkit.

    Raises: ValueError that lists every setting that no class of transformers supports.
    """
    kind, args = read_part(config)
    if kind not in (ViT, MAE):
        raise ValueError(f"config must be of a ViT or an MAE, got {kind.__name__}")
    trunk = read_trunk(args["encoder"])
    if kind is MAE:
        decoder = read_trunk(args["decoder"])
        target = ViTTarget("vit_mae", "ViTMAEForPreTraining", args, trunk, decoder)
        problems = [*dict.fromkeys((*trunk.problems, *decoder.problems)), *find_mae_problems(target, decoder)]
    else:
        target = choose_vit_class(args, trunk)
        problems = [*trunk.problems, *find_vit_problems(target)]
    config_slots.refuse_problems(f"the export to {target.name}", problems)
    return target


def choose_vit_class(args: Mapping[str, Any], trunk: Trunk) -> ViTTarget:
    """Return DINOv2 for a layer scale, with registers for more prefix tokens; else ViT, or DeiT for a second one."""
    several = args["prefix"] > 1
    if trunk.scale is not None:
        kind, name = ("dinov2_with_registers", "Dinov2WithRegisters") if several else ("dinov2", "Dinov2")
    else:
        kind, name = ("deit", "DeiT") if several else ("vit", "ViT")
    return ViTTarget(kind, name + ("ForImageClassification" if args["outputs"] else "Model"), args, trunk, None)


def find_vit_problems(target: ViTTarget) -> list[str]:
    """Return a message for each setting of a ViT that the class does not support."""
    args, trunk, prefix = target.args, target.trunk, target.args["prefix"]
    pool, table = read_part(args["pool"]), read_part(args["table"])
    dino = target.kind.startswith("dinov2")
    # Models of transformers without a head return all tokens, and the caller pools them.
    average = pool.kind is Mean and read_part(pool.args["norm"]).kind is nn.Identity and not args["outputs"]
    return find_trunk_problems(trunk) + config_slots.list_failures(
        {
            f"prefix must be 1 or 2, with a layer scale any but 0, got prefix={prefix}": (
                prefix in (1, 2) or (dino and prefix > 2)
            ),
            "pre_norm must be left out": read_part(args["pre_norm"]).kind is nn.Identity,
            "head must be torch.nn.Linear": config_slots.is_linear(read_part(args["head"])),
            f"pool must be First, got {pool.kind.__name__}": pool.kind is First or average,
            f"table must be Learned or Sinusoidal, got {table.kind.__name__}": table.kind in (Learned, Sinusoidal),
            "mlp must be MLP without a layer scale, got SwiGLU": dino or trunk.act is not None,
            SQUARE.format(target.grid): not dino or target.grid[0] == target.grid[1],
            f"outputs must be 0 with a layer scale, got outputs={args['outputs']}": not (dino and args["outputs"]),
            f"mlp must be a whole number of times as wide as the model, got {trunk.hidden} for dim={trunk.dim}": (
                not dino or find_mlp_ratio(trunk) is not None
            ),
        }
    )


def find_mae_problems(target: ViTTarget, decoder: Trunk) -> list[str]:
    """Return a message for each setting of an MAE that ViTMAE does not support."""
    args, trunk, grid = target.args, target.trunk, target.grid
    rows, columns = args["patch_size"]
    tables = {read_part(args[name]).kind for name in ("table", "decoder_table")}
    problems = dict.fromkeys(find_trunk_problems(trunk) + find_trunk_problems(decoder))
    return [*problems] + config_slots.list_failures(
        {
            f"prefix must be 1, got prefix={args['prefix']}": args["prefix"] == 1,
            f"patch_size must be square, got patch_size={rows, columns}": rows == columns,
            # The constructor of transformers fills both tables as if N were a square.
            f"the number of patches must be a square, got a grid of {grid}": (
                math.isqrt(math.prod(grid)) ** 2 == math.prod(grid)
            ),
            "encoder and decoder must be without a layer scale": trunk.scale is None and decoder.scale is None,
            "encoder and decoder must have MLPs, got SwiGLU": trunk.act is not None and decoder.act is not None,
            "encoder and decoder must have the same act": trunk.act == decoder.act,
            "encoder and decoder must have the same epsilon": trunk.eps == decoder.eps,
            "table and decoder_table must be Learned or Sinusoidal": tables <= {Learned, Sinusoidal},
        }
    )


def find_trunk_problems(trunk: Trunk) -> list[str]:
    return config_slots.list_failures(
        {
            "final_norm must be True": trunk.final_norm,
            f"act must be one of {', '.join(ACTS)}": trunk.act is None or find_hf_act(trunk) is not None,
        }
    )


def find_hf_act(trunk: Trunk) -> str | None:
    """Return the hidden_act of an encoder; None where transformers has none."""
    return next((name for name, value in ACTS.items() if trunk.act == read_part(value)), None)


def find_mlp_ratio(trunk: Trunk) -> int | None:
    """Return DINOv2's mlp_ratio, a whole number; None where there is none."""
    width = compute_swiglu_width if trunk.act is None else int
    return next((ratio for ratio in range(1, 65) if width(trunk.dim * ratio) == trunk.hidden), None)
