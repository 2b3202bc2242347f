import subprocess
import sys
from operator import attrgetter

import pytest

import vitkit


def test_the_public_list_is_exact_and_sorted() -> None:
    assert vitkit.__all__ == sorted(vitkit.__all__)
    assert (
        dir(vitkit)
        == vitkit.__all__
        == [
            *("ALiBi", "Attend", "Attention", "CLIP", "Cache", "Collection", "Encoder", "EndOfText"),
            *("ExplicitCore", "First", "Frame", "FusedCore", "Head", "Last", "LayerNorm", "Layout", "Learned"),
            *("MAE", "MLP", "Mean", "MeasuredCore", "PatchEmbed", "Position", "PostNorm", "PreNorm"),
            *("Preprocess", "QuickGELU", "RelativeBias", "Rotary", "Sinusoidal", "SwiGLU", "TextTower"),
            *("TokenEmbed", "Told", "ViT", "ablate_heads", "attend", "capture", "coverage", "edit", "evaluate"),
            *("evaluate_pairs", "explain", "export", "export_to", "features", "heads", "import_model"),
            *("knockout", "layout_of", "load", "open_model", "predict", "push", "reconstruct", "relevance"),
            *("rollout", "save", "statistics", "text_relevance", "zero_shot"),
        ]
    )


@pytest.mark.parametrize("name", vitkit.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(vitkit, name)
    assert value.__name__ == name
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No vitkit attribute Vit"):
        attrgetter("Vit")(vitkit)


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        ("vitkit", ["torch", "numpy", "jsonargparse"]),
        ("vitkit.nn", ["lightning", "torchvision", "timm", "jsonargparse", "PIL", "torch._dynamo"]),
        ("vitkit.models", ["lightning", "torchvision", "timm", "jsonargparse", "PIL"]),
        ("vitkit.weights", ["lightning", "torchvision", "timm", "sklearn", "matplotlib"]),
        ("vitkit.commands.predict", ["lightning", "torchvision", "timm", "sklearn", "matplotlib"]),
        ("vitkit.commands.importing", ["lightning", "timm", "open_clip", "transformers", "huggingface_hub"]),
        ("vitkit.commands.push", ["lightning", "timm", "open_clip", "transformers", "huggingface_hub"]),
    ],
)
def test_importing_a_module_leaves_out_what_it_does_not_need(module: str, left_out: list[str]) -> None:
    code = f"import sys, {module}; print(*{set(left_out)} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
