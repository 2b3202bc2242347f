"""Hugging Face's config.json for ViT, DeiT, ViTMAE and DINOv2, as a config of vitkit.

Dropout and drop path belong to training, and are not read. Sizes are (h, w).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vitkit.convert import parts

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


def describe(told: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the ViT or MAE that a config.json speaks of.

    Raises: ValueError with everything that vitkit's models cannot hold.
    """
    values, name = settings(told)
    kind = ARCHITECTURES[name].kind
    # transformers smooths where a grid shrinks in one of its classes alone.
    resample = "vitkit.nn.bicubic_antialias" if kind == "dinov2_with_registers" else "vitkit.nn.bicubic"
    table = {"class_path": "vitkit.nn.Learned", "init_args": {"resample": resample}}
    args: dict[str, Any] = {
        "encoder": described(values, ""),
        "image_size": [*parts.sides(values["image_size"], "image_size")],
        "patch_size": [*parts.sides(values["patch_size"], "patch_size")],
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
    if not ARCHITECTURES[settings(told)[1]].head:
        return ()
    match told.get("id2label"), told.get("num_labels", 2):
        case Mapping() as names, _ if all(str(key).isdecimal() for key in names):
            return tuple(str(names[key]) for key in sorted(names, key=int))
        case None, int(count) if 0 <= count <= MOST_CLASSES:
            return tuple(f"LABEL_{index}" for index in range(count))
    raise ValueError(f"id2label must hold names by number, got id2label={told.get('id2label')!r:.80}")


def settings(told: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """All values, and the name of the class. Raises: ValueError with everything that vitkit's models cannot hold."""
    kind = str(told.get("model_type"))
    if kind not in FORMATS:
        raise ValueError(f"model_type must be one of {', '.join(FORMATS)}, got model_type={kind:.80}")
    values = {**FORMATS[kind], **told}
    parts.refuse("config.json", parts.mistyped(values, {k: v for k, v in FORMATS[kind].items() if k not in OTHERWISE}))
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
    reasons = parts.failing(checks)
    try:
        rows, columns = parts.grid(values["image_size"], values["patch_size"])
        if kind.startswith("dinov2") and rows != columns:
            reasons.append(SQUARE.format((rows, columns)))
    except ValueError as error:
        reasons.append(str(error))
    parts.refuse("config.json", reasons)
    return values, named[0]


def described(values: Mapping[str, Any], of: str) -> dict[str, Any]:
    """The config of the encoder, or of the decoder."""
    dim, depth, heads = (values[of + name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    hidden = int(dim * values["mlp_ratio"]) if "mlp_ratio" in values else values[f"{of}intermediate_size"]
    if values.get("use_swiglu_ffn"):
        mlp = {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": parts.ratio(gated(hidden), dim)}}
    else:
        args = {"ratio": parts.ratio(hidden, dim), "act": ACTS[values["hidden_act"]]}
        mlp = {"class_path": "vitkit.nn.MLP", "init_args": args}
    scale = values.get("layerscale_value")
    return parts.encoder(dim, depth, heads, eps=values["layer_norm_eps"], mlp=mlp, scale=scale)


def gated(hidden: int) -> int:
    """The width of DINOv2's SwiGLU: 2/3, and a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8
