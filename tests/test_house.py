"""The layout and the direction of imports, read from the source."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "vitkit").rglob("*.py"))
# Upwards: a module imports from its own layer and from those below.
LAYERS = {
    "nn": 0,
    "models": 1,
    **dict.fromkeys(
        (
            "configs",
            "convert",
            "devices",
            "encode",
            "figures",
            "fingerprint",
            "foreign",
            "interpret",
            "losses",
            "metrics",
            "optim",
            "preprocess",
            "recall",
            "tokens",
            "transfer",
            "unallocated",
        ),
        2,
    ),
    "weights": 2,
    **dict.fromkeys(("data", "retrieval"), 3),
    "tasks": 4,
    "commands": 5,
    "cli": 6,
}
LIGHTNING = {"lightning", "lightning_fabric", "pytorch_lightning"}


def layer(module: str) -> str:
    """The first part of a module's name below vitkit."""
    return [*module.split("."), ""][1]


def module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree(file)):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=None) | ast.ImportFrom(level=1 | 2 | 3):
                pytest.fail(f"{module(file)}, line {node.lineno}: imports are absolute")
            case ast.ImportFrom(module="vitkit"):
                found |= {f"vitkit.{alias.name}" for alias in node.names}
            case ast.ImportFrom():
                found.add(str(node.module))
    return found


each_file = pytest.mark.parametrize("file", FILES, ids=module)


@each_file
def test_every_file_has_a_place(file: Path) -> None:
    assert module(file) == "vitkit" or layer(module(file)) in LAYERS


@each_file
def test_imports_go_one_way(file: Path) -> None:
    if module(file) == "vitkit":  # lazy: a table of names
        return
    here = LAYERS[layer(module(file))]
    above = {name for name in imports(file) if name.startswith("vitkit.") and LAYERS[layer(name)] > here}
    assert not above


@each_file
def test_the_trunk_imports_torch_and_jaxtyping_only(file: Path) -> None:
    if layer(module(file)) == "nn":
        roots = {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names)
        assert roots <= {"torch", "jaxtyping", "vitkit"}


@each_file
def test_lightning_stays_in_data_and_tasks(file: Path) -> None:
    if layer(module(file)) not in ("data", "tasks") and module(file) != "vitkit.commands.epoch_runs":
        assert not {name.split(".")[0] for name in imports(file)} & LIGHTNING


@each_file
def test_no_mask_is_a_number_by_hand(file: Path) -> None:
    for node in ast.walk(tree(file)):
        match node:
            case ast.UnaryOp(ast.USub(), ast.Constant(float(value))) if value >= 1e4:
                pytest.fail(f"line {node.lineno}: -{value:g}")
            case ast.Call(ast.Name("float"), [ast.Constant("-inf")]):
                pytest.fail(f"line {node.lineno}: a hand-written infinity")


@each_file
def test_nothing_is_loaded_that_may_execute(file: Path) -> None:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert name not in ("eval", "exec", "pickle.load", "pickle.loads", "yaml.load", "yaml.unsafe_load")
            assert keywords.get("weights_only", "True") == "True"
            assert name != "torch.load" or "weights_only" in keywords
