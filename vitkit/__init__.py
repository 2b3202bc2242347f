"""One Transformer trunk and the models that stand on it. A name is imported from its module when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitkit.commands.evaluate import evaluate
    from vitkit.commands.export import export
    from vitkit.commands.export_to import export_to
    from vitkit.commands.features import features
    from vitkit.commands.importing import import_model
    from vitkit.commands.pairs import evaluate_pairs
    from vitkit.commands.predict import predict
    from vitkit.commands.push import push
    from vitkit.commands.reconstruct import reconstruct
    from vitkit.commands.zero_shot import zero_shot
    from vitkit.foreign.told import Told
    from vitkit.models import CLIP, MAE, TextTower, ViT
    from vitkit.nn import (
        MLP,
        ALiBi,
        Attend,
        Attention,
        Cache,
        Encoder,
        EndOfText,
        ExplicitCore,
        First,
        FusedCore,
        Last,
        LayerNorm,
        Learned,
        Mean,
        MeasuredCore,
        PatchEmbed,
        Position,
        PostNorm,
        PreNorm,
        QuickGELU,
        RelativeBias,
        Rotary,
        Sinusoidal,
        SwiGLU,
        TokenEmbed,
    )
    from vitkit.preprocess import Preprocess
    from vitkit.retrieval.collection import Collection
    from vitkit.weights import load, open_model, save

__version__ = "0.1.0"
__all__ = [
    "ALiBi",
    "Attend",
    "Attention",
    "CLIP",
    "Cache",
    "Collection",
    "Encoder",
    "EndOfText",
    "ExplicitCore",
    "First",
    "FusedCore",
    "Last",
    "LayerNorm",
    "Learned",
    "MAE",
    "MLP",
    "Mean",
    "MeasuredCore",
    "PatchEmbed",
    "Position",
    "PostNorm",
    "PreNorm",
    "Preprocess",
    "QuickGELU",
    "RelativeBias",
    "Rotary",
    "Sinusoidal",
    "SwiGLU",
    "TextTower",
    "TokenEmbed",
    "Told",
    "ViT",
    "evaluate",
    "evaluate_pairs",
    "export",
    "export_to",
    "features",
    "import_model",
    "load",
    "open_model",
    "predict",
    "push",
    "reconstruct",
    "save",
    "zero_shot",
]
HOMES = {
    "Preprocess": "vitkit.preprocess",
    **dict.fromkeys(("CLIP", "MAE", "TextTower", "ViT"), "vitkit.models"),
    "Collection": "vitkit.retrieval.collection",
    "Told": "vitkit.foreign.told",
    **{name: f"vitkit.commands.{name}" for name in ("evaluate", "export", "export_to", "features", "predict", "push")},
    "evaluate_pairs": "vitkit.commands.pairs",
    "import_model": "vitkit.commands.importing",
    "reconstruct": "vitkit.commands.reconstruct",
    "load": "vitkit.weights",
    "open_model": "vitkit.weights",
    "save": "vitkit.weights",
    "zero_shot": "vitkit.commands.zero_shot",
}  # all others: vitkit.nn


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'vitkit' has no attribute {name!r}")
    return getattr(import_module(HOMES.get(name, "vitkit.nn")), name)


def __dir__() -> list[str]:
    return __all__
