from typing import Any

import pytest
import yaml
from jsonargparse import ArgumentParser
from torch import nn

from vitkit.bundle import model_config
from vitkit.nn import LayerNorm, LinearCore, NoPositions, Rotary, WindowCore


def config(**encoder: Any) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2, **encoder}}


def test_config_builds_same_as_constructor() -> None:
    rotary = {"class_path": "vitkit.nn.Rotary", "init_args": {"axes": 2, "base": 100.0}}
    encoder = model_config.build_model(config(position=rotary, drop_path=0.1))
    position = encoder.get_submodule("position")
    assert isinstance(position, Rotary)
    assert (position.heads, position.head_dim, position.axes, position.base) == (2, 8, 2, 100.0)


def test_dumped_config_builds_same_model() -> None:
    model = {"class_path": "vitkit.ViT", "init_args": {"encoder": config(), "image_size": [32, 48]}}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", type=nn.Module)
    dumped = yaml.safe_load(parser.dump(parser.parse_object({"model": model})))["model"]
    assert dumped["init_args"]["init"] == "vitkit.nn.init.vit"
    assert str(model_config.build_model(dumped)) == str(model_config.build_model(model))


@pytest.mark.parametrize("path", ["vitkit.LayerNorm", "vitkit.nn.LayerNorm", "vitkit.nn.residual.LayerNorm"])
def test_every_import_path_of_a_class_builds_it(path: str) -> None:
    assert model_config.get_config_names()[path] is LayerNorm
    assert isinstance(model_config.build_model(config(norm=path)).get_submodule("norm"), LayerNorm)


@pytest.mark.parametrize("path", ["torch.nn.ReLU", "torch.nn.modules.activation.ReLU"])
def test_torch_modules_fill_slots(path: str) -> None:
    encoder = model_config.build_model(config(mlp={"class_path": "vitkit.nn.MLP", "init_args": {"act": path}}))
    assert isinstance(encoder.get_submodule("blocks.0.mlp.f.act"), nn.ReLU)


def test_nested_slots_are_filled_from_config() -> None:
    slots = {
        "attention": {
            "class_path": "vitkit.nn.Attention",
            "init_args": {"core": {"class_path": "vitkit.nn.WindowCore", "init_args": {"size": 4}}},
        },
        "mlp": {
            "class_path": "vitkit.nn.SwiGLU",
            "init_args": {
                "gate": {"class_path": "torch.nn.GELU", "init_args": {"approximate": "tanh"}},
                "bias": False,
            },
        },
    }
    init_args = {"encoder": config(causal=True, **slots), "table": "vitkit.nn.NoPositions", "outputs": 8}
    tower = model_config.build_model({"class_path": "vitkit.models.TextTower", "init_args": init_args})
    core, gate = (tower.get_submodule(f"encoder.blocks.0.{name}") for name in ("attn.f.core", "mlp.f.gate"))
    assert isinstance(core, WindowCore) and core.size == 4
    assert isinstance(gate, nn.GELU) and gate.approximate == "tanh"
    assert isinstance(tower.get_submodule("embed.table"), NoPositions)


@pytest.mark.parametrize("path", ["vitkit.nn.LinearCore", "vitkit.nn.cores.LinearCore"])
def test_attention_core_is_built_from_config(path: str) -> None:
    attention = {"class_path": "vitkit.nn.Attention", "init_args": {"core": path}}
    encoder = model_config.build_model(config(attention=attention))
    assert isinstance(encoder.get_submodule("blocks.0.attn.f.core"), LinearCore)


def test_only_exported_and_listed_torch_names_are_allowed() -> None:
    torch_names = {name for name in model_config.get_config_names() if not name.startswith("vitkit.")}
    assert {name.rsplit(".", 1)[1] for name in torch_names} == set(model_config.TORCH)
    assert not {"vitkit.save", "vitkit.load", "vitkit.open_model", "vitkit.nn.init", "vitkit.nn.Linear"} & {
        *model_config.get_config_names()
    }


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        (config(dept=3), "config.dept is not an argument of vitkit.nn.Encoder; did you mean depth?"),
        (config(norm="vitkit.nn.LayerNrm"), "config.norm must be one of the names that a config may use"),
        (config(norm={"class_path": "tanh"}), "config.norm.class_path must be one of the names"),
        (config(norm="tanh"), "config.norm: "),
        (config(norm="vitkit.nn.LayerNrm"), "did you mean vitkit.nn.LayerNorm?"),
        (config(mlp={"class_path": "vitkit.SwiGLU", "init_args": {"rato": 2.0}}), "config.mlp.rato is not an argument"),
        (config(mlp={"class_path": "vitkit.SwiGLU", "init_args": [2.0]}), "config.mlp.init_args is not an argument"),
        (config(mlp={"class_path": "vitkit.SwiGLU", "dict_kwargs": {}}), "config.mlp must hold one class_path"),
        (config(mlp={"class_path": ["vitkit.SwiGLU"]}), "config.mlp must hold one class_path"),
        (config(dim=2.5), "config.dim: must be int, got 2.5"),
        (config(dim=10**40), "Overflow"),
        (config(dim=b"16"), "config.dim must be a name, a number, a list or a mapping"),
        (config(heads=3), "dim must be a multiple of heads"),
        ({"class_path": "vitkit.nn.bicubic"}, "does not correspond to a subclass of Module"),
        ({"class_path": "vitkit.nn.Encoder"}, "dim"),
        ({}, "config must hold a class_path"),
    ],
)
def test_invalid_config_error_is_one_line(invalid: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        model_config.build_model(invalid)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_filled_defaults_match_the_model() -> None:
    """A class that replaces another keeps shared arguments: SwiGLU has the MLP's ratio of 4, not its default 8/3."""
    short = config(mlp="vitkit.nn.SwiGLU", norm="torch.nn.LayerNorm")
    model, filled = model_config.build_model(short), model_config.fill_defaults(short)["init_args"]
    gate = {"class_path": "torch.nn.SiLU", "init_args": {"inplace": False}}
    assert filled["mlp"] == {"class_path": "vitkit.SwiGLU", "init_args": {"ratio": 4.0, "gate": gate, "bias": True}}
    assert isinstance(model.get_submodule("blocks.0.mlp.f.gate"), nn.SiLU)
    assert filled["norm"]["init_args"]["eps"] == model.get_submodule("norm").eps == 1e-6
    assert model.get_parameter("blocks.0.mlp.f.down.weight").shape == (16, 64)
    assert str(model_config.build_model(model_config.fill_defaults(short))) == str(model)
