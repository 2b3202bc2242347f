"""Arguments that classes gained since a run began."""

from typing import Any

from vitkit.fit.run_folder import list_defaults


def config(attention: dict[str, Any], mlp: dict[str, Any], **encoder: Any) -> dict[str, Any]:
    slots = {
        "attention": {"class_path": "vitkit.Attention", "init_args": attention},
        "mlp": {"class_path": "vitkit.MLP", "init_args": mlp},
    }
    return {"model": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, **slots, **encoder}}}


def test_arguments_that_hold_their_defaults_are_listed() -> None:
    """Plain values, functions, classes, and classes with their own defaults."""
    gelu = {"class_path": "torch.nn.GELU", "init_args": {"approximate": "none"}}
    given = config({"core": {"class_path": "vitkit.MeasuredCore"}, "bias": True}, {"act": gelu}, causal=False)
    given["table"] = {"class_path": "vitkit.Learned", "init_args": {"resample": "vitkit.nn.tables.bicubic_antialias"}}
    assert {*list_defaults(given)} == {
        *("model.attention.core.class_path", "model.attention.bias", "model.causal", "table.resample"),
        *("model.attention.class_path", "model.mlp.class_path", "model.mlp.act.class_path"),
        "model.mlp.act.approximate",
    }


def test_other_values_are_not_listed() -> None:
    """Nor is an argument that may be None: a config leaves None out, so that its absence says something."""
    tanh = {"class_path": "torch.nn.GELU", "init_args": {"approximate": "tanh"}}
    window = {"class_path": "vitkit.WindowCore", "init_args": {"size": 4}}
    given = config({"core": window, "bias": False, "kv_heads": 2}, {"act": tanh}, causal=True)
    given["trainer"] = {"max_epochs": 3, "inference_mode": True}  # of no class that the config names
    assert [*list_defaults(given)] == []
    optional = {"class_path": "vitkit.nn.ALiBi", "init_args": {"prefix": 0}}
    assert [*list_defaults({"position": optional})] == ["position.prefix"]
    assert [*list_defaults({"data": {"class_path": f"{__name__}.Optional", "init_args": {"views": 2}}})] == []


class Optional:
    def __init__(self, views: int | None = 2) -> None: ...
