"""Names that others rely on: options of commands, public Python names, and the tensors of every model."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
import yaml
from normal import differences
from runs import CONFIGS
from torch import nn

import vitkit
from vitkit.cli import main

Recorded = Callable[..., None]

RECIPES = {"classify": "classify_digits", "reconstruct": "pretrain_mae_mnist5k", "contrast": "contrast_digits"}


def options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the options that a command's help lists, and the arguments without dashes, sorted.

    Options of Lightning's Trainer are Lightning's.
    """
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    names = set()
    for line in capsys.readouterr().out.splitlines():
        if match := re.match(r"  (-[^ ].*|[a-z_]+(?:  |$).*)", line):
            names |= set(re.findall(r"(?:^|, )(--?[\w.-]+|[a-z_]+$|[a-z_]+(?=  ))", match[1].split("  ")[0] + "  "))
    return sorted(name for name in names if not name.startswith("--trainer"))


def test_commands_have_the_same_options(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--help"]) == 0
    commands = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    helps = {command: "--help" for command in commands} | {"fit": "--trainer.help"}  # of which --help is a part
    recorded("options", {command: options([command, helps[command]], capsys) for command in commands})


def test_tasks_and_data_have_the_same_options(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    names: dict[str, list[str]] = {}
    for task, recipe in RECIPES.items():
        config = yaml.safe_load((CONFIGS / f"{recipe}.yaml").read_text("utf-8"))
        for part in ("model", "data"):
            help_of = f"--{part}.help={config[part]['class_path']}"
            names[f"{task} {part}"] = options(["fit", help_of], capsys)
    recorded("options_of_tasks", names)


def spelled(value: Any) -> str:
    """Return a default as text, without the module of what it names."""
    if value is inspect.Parameter.empty:
        return "required"
    if inspect.isclass(value) or inspect.isfunction(value) or inspect.isbuiltin(value):
        return value.__name__
    return repr(value)


def signature(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parameters of a function and their defaults, marked by * and ** as in a signature."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    only = {inspect.Parameter.KEYWORD_ONLY: ", by name"}
    parameters = inspect.signature(function).parameters.values()
    return {
        f"{stars.get(parameter.kind, '')}{parameter.name}": spelled(parameter.default) + only.get(parameter.kind, "")
        for parameter in parameters
        if parameter.name not in ("self", "cls")
    }


def test_public_names_are_the_same(recorded: Recorded) -> None:
    recorded("public", vitkit.__all__)


def test_public_functions_take_the_same_arguments(recorded: Recorded) -> None:
    recorded("signatures", {name: signature(getattr(vitkit, name)) for name in vitkit.__all__})


def methods(kind: type) -> dict[str, Any]:
    """Return the public methods and properties that a class of vitkit defines, and its parents in vitkit."""
    members: dict[str, Any] = {}
    for parent in reversed(kind.__mro__):
        if parent.__module__.startswith("vitkit"):
            for name, member in vars(parent).items():
                member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if name.startswith("_"):
                    continue
                if isinstance(member, property):
                    members[name] = "property"
                elif inspect.isfunction(member):
                    members[name] = signature(member)
    return dict(sorted(members.items()))


def test_public_classes_have_the_same_methods(recorded: Recorded) -> None:
    """More may come."""
    classes = [name for name in vitkit.__all__ if inspect.isclass(getattr(vitkit, name))]
    recorded("methods", {name: methods(getattr(vitkit, name)) for name in classes}, more=True)


def record_fields(kind: type) -> list[str] | None:
    """Return the fields of a NamedTuple or a dataclass in their order, with their defaults; None for another class."""
    if not dataclasses.is_dataclass(kind) and not any("_fields" in vars(parent) for parent in kind.__mro__):
        return None
    return [f"{name}: {default}" for name, default in signature(kind).items()]


def classes_in(annotation: Any) -> Iterator[type]:
    """Return the classes of vitkit that an annotation names, those inside `Iterator[...]` and unions included."""
    if inspect.isclass(annotation) and annotation.__module__.startswith(("vitkit", __name__)):
        yield annotation
    for part in get_args(annotation):
        yield from classes_in(part)


def find_records(values: Iterable[Any]) -> dict[str, list[str]]:
    """Return the fields of the records among public values, of those that functions return, and of their fields."""
    kinds: dict[str, type] = {}
    rest: list[type] = []
    for value in values:
        if inspect.isclass(value):
            rest.append(value)
        else:
            rest += classes_in(get_type_hints(inspect.unwrap(value))["return"])
    while rest:
        kind = rest.pop()
        if record_fields(kind) is None or kinds.get(kind.__name__) is kind:
            continue
        assert kind.__name__ not in kinds, f"{kind.__name__} is the name of two records"
        kinds[kind.__name__] = kind
        rest += [inner for annotation in get_type_hints(kind).values() for inner in classes_in(annotation)]
    return {name: fields for name, kind in sorted(kinds.items()) if (fields := record_fields(kind)) is not None}


def test_public_records_have_the_same_fields(recorded: Recorded) -> None:
    """Their order counts, as they can be unpacked and made by position."""
    recorded("records", find_records(getattr(vitkit, name) for name in vitkit.__all__))


class Score(NamedTuple):
    value: float
    label: str = "none"


@dataclasses.dataclass
class Table:
    scores: list[Score]


class Wide(NamedTuple):
    score: int


def tabulate() -> Iterator[tuple[Table, ...] | None]:
    yield None


def test_a_changed_record_is_reported() -> None:
    """Through the return annotation of a function, and a field of what it returns."""
    records = find_records([tabulate, Wide, int])
    assert records == {
        "Score": ["value: required", "label: 'none'"],
        "Table": ["scores: required"],
        "Wide": ["score: required"],
    }
    for fields in (["label: 'none'", "value: required"], ["value: required"], ["value: required", "label: required"]):
        changed: Mapping[str, list[str]] = {**records, "Score": fields}
        assert list(differences(records, changed, 0.0, False, "records"))
    assert list(differences(records, {"Wide": records["Wide"]}, 0.0, False, "records"))


def encoder(depth: int = 1, **options: Any) -> vitkit.Encoder:
    return vitkit.Encoder(16, depth, 2, **options)


def vit(trunk: vitkit.Encoder | None = None, **options: Any) -> vitkit.ViT:
    return vitkit.ViT(trunk or encoder(), (8, 12), (4, 4), **{"outputs": 5, **options})


def mae(**options: Any) -> vitkit.MAE:
    return vitkit.MAE(encoder(), vitkit.Encoder(8, 1, 2), (8, 12), (4, 4), **options)


def text(trunk: vitkit.Encoder | None = None, **options: Any) -> vitkit.TextTower:
    return vitkit.TextTower(trunk or encoder(causal=True), 24, 8, **{"outputs": 5, **options})


def clip(**options: Any) -> vitkit.CLIP:
    return vitkit.CLIP(vit(), text(), **options)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: vit(encoder(2)),
    "vit without a head": lambda: vit(outputs=0),
    "vit with registers, of one channel": lambda: vit(prefix=5, channels=1),
    "vit without prefix, mean": lambda: vit(prefix=0, pool=vitkit.Mean),
    "vit mean with a norm": lambda: vit(encoder(final_norm=False), pool=partial(vitkit.Mean, norm=vitkit.LayerNorm)),
    "vit attention pool": lambda: vit(prefix=0, pool=partial(vitkit.Attend, heads=2)),
    "vit fixed table, rotary": lambda: vit(
        encoder(position=partial(vitkit.Rotary, axes=2)), table=vitkit.Sinusoidal, pool=vitkit.Mean
    ),
    "vit relative bias": lambda: vit(encoder(position=partial(vitkit.RelativeBias, axes=2, prefix=1))),
    "vit alibi": lambda: vit(encoder(position=partial(vitkit.ALiBi, prefix=1))),
    "vit swiglu, layer scale": lambda: vit(
        encoder(mlp=vitkit.SwiGLU, residual=partial(vitkit.PreNorm, scale=1e-5, dropout=0.1), drop_path=0.1)
    ),
    "vit post norm": lambda: vit(encoder(residual=vitkit.PostNorm, final_norm=False)),
    "vit of clip": lambda: vit(
        encoder(mlp=partial(vitkit.MLP, act=vitkit.QuickGELU)),
        pre_norm=vitkit.LayerNorm,
        head=partial(nn.Linear, bias=False),
    ),
    "vit grouped heads, normed keys, no bias": lambda: vit(
        encoder(attention=partial(vitkit.Attention, kv_heads=1, qk_norm=vitkit.LayerNorm, bias=False))
    ),
    "mae": mae,
    "mae learned tables, pixels": lambda: mae(
        table=vitkit.Learned, decoder_table=vitkit.Learned, norm_pix=False, channels=1
    ),
    "text": text,
    "text last token": lambda: text(encoder(), pool=vitkit.Last),
    "clip": clip,
    "siglip": lambda: clip(bias=-10.0),
    "decoder with a memory": lambda: encoder(2, memory_dim=24, causal=True),
}


def tensors(model: nn.Module) -> dict[str, Any]:
    """Return the shape of each tensor of a model's state, and which of them are no parameters."""
    parameters = {name for name, _ in model.named_parameters()}
    shapes = {name: [*tensor.shape] for name, tensor in model.state_dict().items()}
    return {name: shape if name in parameters else {"buffer": shape} for name, shape in shapes.items()}


def test_models_have_the_same_tensors(recorded: Recorded) -> None:
    recorded("tensors", {name: tensors(make()) for name, make in MODELS.items()})
