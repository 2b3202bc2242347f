"""Arguments that classes gained since a run began."""

import re
from typing import Any

import pytest

from vitkit.fit.run_folder import list_defaults, refuse_changes


def config(attention: dict[str, Any], mlp: dict[str, Any], **encoder: Any) -> dict[str, Any]:
    slots = {
        "attention": {"class_path": "vitkit.Attention", "init_args": attention},
        "mlp": {"class_path": "vitkit.MLP", "init_args": mlp},
    }
    return {"model": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, **slots, **encoder}}}


def test_arguments_with_defaults_are_listed() -> None:
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


def test_arguments_of_a_group_are_listed() -> None:
    arguments = {"tokenizer": {"context": 9, "cased": False, "special": []}, "reading": {"on_error": "skip"}}
    config = {"data": {"class_path": "vitkit.data.pairs.Pairs", "init_args": arguments}}
    assert {*list_defaults(config)} == {"data.tokenizer.cased", "data.tokenizer.special"}


class Jitter:
    def __init__(self, strength: float, later: int = 2) -> None: ...


def test_classes_in_a_list_may_gain_arguments() -> None:
    def run(*transforms: dict[str, Any]) -> dict[str, Any]:
        augment = [{"class_path": f"{__name__}.Jitter", "init_args": arguments} for arguments in transforms]
        return {
            "data": {
                "class_path": "vitkit.data.images.Images",
                "init_args": {"augment": {"images": augment}, "batch": 8},
            }
        }

    began = run({"strength": 1.0})
    refuse_changes(began, run({"strength": 1.0, "later": 2}))
    for other, text in (
        (run({"strength": 1.0, "later": 3}), "data.augment.images.0.later (was None, now 3)"),
        (run({"strength": 2.0, "later": 2}), "data.augment.images.0.strength (was 1.0, now 2.0)"),
        (run({"strength": 1.0}, {"strength": 1.0}), "data.augment.images.1.class_path (was None, now"),
        (run(), "data.augment.images.0.class_path (was "),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            refuse_changes(began, other)


class Optional:
    def __init__(self, views: int | None = 2) -> None: ...
