import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

import vitkit

PUBLIC = [
    *("ALiBi", "Attend", "Attention", "Bundle", "CLIP", "Cache", "Collection", "Encoder", "EndOfText"),
    *("ExplicitCore", "First", "Frame", "FusedCore", "Head", "Last", "LayerNorm", "Layout", "Learned", "LinearCore"),
    *("MAE", "MLP", "Mean", "MeasuredCore", "Message", "NoPositions", "Overrides", "PatchEmbed", "Position"),
    *("PostNorm", "PreNorm", "Preprocess", "QuickGELU", "RelativeBias", "Rotary", "Sampling", "Sinusoidal", "SwiGLU"),
    *("TextDecoder", "TextTower", "TokenEmbed", "ViT", "WindowCore", "ablate_heads", "attend", "capture", "complete"),
    *("coverage", "edit", "evaluate", "evaluate_pairs", "evaluate_texts", "explain", "export", "export_to"),
    *("features", "heads"),
    *("import_model", "index", "knockout", "layout_of", "load", "open_model", "predict", "push", "reconstruct"),
    *("relevance", "rollout", "save", "search", "statistics", "text_relevance", "zero_shot"),
]


def test_public_list_is_exact_and_sorted() -> None:
    assert vitkit.__all__ == sorted(vitkit.__all__)
    assert dir(vitkit) == vitkit.__all__ == PUBLIC


@pytest.mark.parametrize("name", vitkit.__all__)
def test_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(vitkit, name)
    assert value.__name__ == name
    assert value.__doc__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No vitkit attribute Vit"):
        attrgetter("Vit")(vitkit)


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("vitkit", ["torch", "numpy", "jsonargparse"]),
        ("vitkit.nn", ["lightning", "torchvision", "timm", "jsonargparse", "PIL", "torch._dynamo"]),
        ("vitkit.models", ["lightning", "torchvision", "timm", "jsonargparse", "PIL"]),
        ("vitkit.bundle.folder", ["lightning", "torchvision", "timm", "sklearn", "matplotlib"]),
        ("vitkit.commands.predict", ["lightning", "torchvision", "timm", "sklearn", "matplotlib"]),
        ("vitkit.commands.import_model", ["lightning", "timm", "open_clip", "transformers", "huggingface_hub"]),
        ("vitkit.commands.push", ["lightning", "timm", "open_clip", "transformers", "huggingface_hub"]),
    ],
)
def test_import_of_a_module_does_not_load_unneeded_libraries(module: str, unneeded: list[str]) -> None:
    code = f"import sys, {module}; print(*{set(unneeded)} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


SHADOWS = """
import importlib, inspect, pkgutil, types
import vitkit

before = {name: getattr(vitkit, name) for name in vitkit.__all__}
for module in pkgutil.walk_packages(vitkit.__path__, "vitkit."):
    importlib.import_module(module.name)
for name in vitkit.__all__:
    for _ in range(2):
        value = getattr(vitkit, name)
        if value is not before[name] or isinstance(value, types.ModuleType) or not callable(value):
            print(name, "is", value)
        elif inspect.isfunction(inspect.unwrap(value)) and not inspect.isclass(value):
            try:
                value()
            except TypeError as error:  # all need an argument
                if not str(error).startswith(f"{name}() missing"):
                    print(name, "raises", error)
            else:
                print(name, "needs no argument: call it here with one that is cheap")
    exec(f"from vitkit import {name} as imported")
    if imported is not before[name]:
        print(name, "is imported as", imported)
"""


def test_no_module_shadows_a_public_function() -> None:
    """A module of the name of a lazy function would shadow it once the module is imported."""
    run = subprocess.run([sys.executable, "-c", SHADOWS], capture_output=True, text=True, check=True)
    assert run.stdout == ""


SHADOWED = """
__all__ = ["predict", "search"]

def __getattr__(name):
    from importlib import import_module
    return getattr(import_module({"predict": "vitkit.predict", "search": "vitkit.query"}[name]), name)
"""


def test_shadowed_name_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "vitkit"
    package.mkdir()
    (package / "__init__.py").write_text(SHADOWED)
    (package / "predict.py").write_text("def predict(source): ...")
    (package / "query.py").write_text("def search(source): ...")
    run = subprocess.run([sys.executable, "-c", SHADOWS], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("predict is <module 'vitkit.predict'")
    assert "search" not in run.stdout
