"""One Transformer trunk and the models that stand on it. A name is imported from its module when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitkit.commands.attend import attend
    from vitkit.commands.evaluate import evaluate
    from vitkit.commands.explain import explain
    from vitkit.commands.export import export
    from vitkit.commands.export_to import export_to
    from vitkit.commands.features import features
    from vitkit.commands.heads import heads
    from vitkit.commands.importing import import_model
    from vitkit.commands.pairs import evaluate_pairs
    from vitkit.commands.predict import predict
    from vitkit.commands.push import push
    from vitkit.commands.reconstruct import reconstruct
    from vitkit.commands.zero_shot import zero_shot
    from vitkit.foreign.told import Told
    from vitkit.interpret.ablation import ablate_heads
    from vitkit.interpret.capture import capture
    from vitkit.interpret.coverage import coverage
    from vitkit.interpret.edits import Head, edit, knockout
    from vitkit.interpret.geometry import Frame
    from vitkit.interpret.layout import Layout, layout_of
    from vitkit.interpret.relevance import relevance, text_relevance
    from vitkit.interpret.rollout import rollout
    from vitkit.interpret.statistics import statistics
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
    "Frame",
    "FusedCore",
    "Head",
    "Last",
    "LayerNorm",
    "Layout",
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
    "ablate_heads",
    "attend",
    "capture",
    "coverage",
    "edit",
    "evaluate",
    "evaluate_pairs",
    "explain",
    "export",
    "export_to",
    "features",
    "heads",
    "import_model",
    "knockout",
    "layout_of",
    "load",
    "open_model",
    "predict",
    "push",
    "reconstruct",
    "relevance",
    "rollout",
    "save",
    "statistics",
    "text_relevance",
    "zero_shot",
]
HOMES = {
    "Preprocess": "vitkit.preprocess",
    **dict.fromkeys(("CLIP", "MAE", "TextTower", "ViT"), "vitkit.models"),
    "Collection": "vitkit.retrieval.collection",
    "Told": "vitkit.foreign.told",
    **{
        name: f"vitkit.commands.{name}"
        for name in ("attend", "evaluate", "explain", "export", "export_to", "features", "heads", "predict", "push")
    },
    "evaluate_pairs": "vitkit.commands.pairs",
    "ablate_heads": "vitkit.interpret.ablation",
    **{name: f"vitkit.interpret.{name}" for name in ("capture", "coverage", "relevance", "rollout", "statistics")},
    "text_relevance": "vitkit.interpret.relevance",
    **dict.fromkeys(("Head", "edit", "knockout"), "vitkit.interpret.edits"),
    **dict.fromkeys(("Layout", "layout_of"), "vitkit.interpret.layout"),
    "Frame": "vitkit.interpret.geometry",
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
