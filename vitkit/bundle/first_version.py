"""The classes and fields of the package's first version, for fingerprints.

A fingerprint always contains these fields, and later ones only if they differ from their defaults. The table never
grows. If one of these classes is renamed, its key here becomes the new name.
"""

from collections.abc import Mapping
from typing import NamedTuple


class FirstClass(NamedTuple):
    """The module that defined a class, and the attributes and submodules of the class without its parameters."""

    module: str
    fields: tuple[str, ...] = ()


RESIDUAL = ("drop", "dropout", "f", "norm", "scale")
CLASSES: Mapping[str, FirstClass] = {
    "ALiBi": FirstClass("vitkit.nn.positions", ("head_dim", "heads", "prefix")),
    "Attend": FirstClass("vitkit.nn.pool", ("attn", "mlp")),
    "Attention": FirstClass(
        "vitkit.nn.attention",
        (
            *("causal", "core", "dropout", "head_dim", "heads", "k_norm", "kv", "memory_dim"),
            *("out", "q", "q_norm", "qkv", "scale", "widths"),
        ),
    ),
    "Block": FirstClass("vitkit.nn.encoder", ("attn", "cross", "mlp")),
    "CLIP": FirstClass("vitkit.models.clip", ("bias", "image", "most", "text")),
    "Decoder": FirstClass("vitkit.models.mae", ("embed", "encoder", "pixels", "table")),
    "Embedding": FirstClass("vitkit.bundle.image_bundle", ("head",)),
    "Encoder": FirstClass(
        "vitkit.nn.encoder", ("blocks", "causal", "depth", "dim", "heads", "memory_dim", "norm", "position")
    ),
    "EndOfText": FirstClass("vitkit.nn.pool", ("end",)),
    "ExplicitCore": FirstClass("vitkit.nn.attention", ("weights",)),
    "First": FirstClass("vitkit.nn.pool"),
    "FusedCore": FirstClass("vitkit.nn.attention"),
    "HeadedTower": FirstClass("vitkit.models.headed_tower", ("head", "outputs", "tower")),
    "Last": FirstClass("vitkit.nn.pool"),
    "LayerNorm": FirstClass("vitkit.nn.residual", ("elementwise_affine", "eps", "normalized_shape")),
    "Learned": FirstClass("vitkit.nn.tables", ("grid", "resample")),
    "MAE": FirstClass("vitkit.models.mae", ("decoder", "embed", "encoder", "masking", "norm_pix", "ratio")),
    "MLP": FirstClass("vitkit.nn.mlp", ("act", "down", "up")),
    "Mean": FirstClass("vitkit.nn.pool", ("norm", "prefix")),
    "MeasuredCore": FirstClass("vitkit.nn.attention", ("explicit", "fused")),
    "Nearest": FirstClass("vitkit.inference.zero_shot_classifier", ("bias", "embed", "scale")),
    "PatchEmbed": FirstClass("vitkit.nn.embed", ("patch_size", "patches", "table")),
    "Position": FirstClass("vitkit.nn.positions", ("head_dim", "heads")),
    "PostNorm": FirstClass("vitkit.nn.residual", RESIDUAL),
    "PreNorm": FirstClass("vitkit.nn.residual", RESIDUAL),
    "QuickGELU": FirstClass("vitkit.nn.mlp"),
    "RelativeBias": FirstClass(
        "vitkit.nn.positions",
        ("backward_only", "buckets", "head_dim", "heads", "prefix", "prefix_weight", "reach"),
    ),
    "Rotary": FirstClass("vitkit.nn.positions", ("axes", "base", "head_dim", "heads")),
    "Sinusoidal": FirstClass("vitkit.nn.tables", ("base", "dim")),
    "SwiGLU": FirstClass("vitkit.nn.mlp", ("down", "gate_up")),
    "TextTower": FirstClass("vitkit.models.text", ("embed", "encoder", "head", "outputs", "pool", "whole")),
    "TokenEmbed": FirstClass("vitkit.nn.embed", ("context", "table", "tokens")),
    "ViT": FirstClass("vitkit.models.vit", ("embed", "encoder", "head", "outputs", "pool", "pre_norm")),
}
PREPROCESS = ("size", "mean", "std", "interpolation", "crop")  # of preprocess.json
TOKENIZER = ("vocabulary", "context", "whole", "clean", "pad")  # of text.json, in its order
