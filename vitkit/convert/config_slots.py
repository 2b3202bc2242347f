"""Configs of models: the parts in their slots, read to write a model in another layout; and pieces of new configs.

D width, h w the grid of patches.
"""

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from torch import nn

from vitkit.bundle import model_config
from vitkit.models import MAE, TextDecoder, TextTower, ViT
from vitkit.nn import (
    MLP,
    Attention,
    Encoder,
    ExplicitCore,
    FusedCore,
    LayerNorm,
    MeasuredCore,
    Position,
    PreNorm,
    SwiGLU,
)

IMPORT_STRETCH_NOTE = "pictures of other proportions are cropped here, where the source stretches them"
EXPORT_STRETCH_NOTE = "pictures of other proportions are stretched there, and cropped here"

MULTILABEL = "multi_label_classification"  # the problem_type in a config.json where an image may have several classes

SOFTMAX_CORES = (FusedCore, ExplicitCore, MeasuredCore)  # over all keys
PROJECTION = {"class_path": "torch.nn.Linear", "init_args": {"bias": False}}  # CLIP's heads


class Part(NamedTuple):
    """A class or function with its arguments, from a config or, as defaults, from its signature."""

    kind: Callable[..., Any]
    args: Mapping[str, Any]


def read_part(value: object) -> Part:
    """Return the part that a config's value or a slot's default stands for."""
    match value:
        case {"class_path": str(path), **rest}:
            kind, arguments = model_config.look_up_name(path, "class_path"), rest.get("init_args", {})
        case str(path):
            kind, arguments = model_config.look_up_name(path, "class_path"), {}
        case _ if callable(value):
            path, kind, arguments = "", value, {}
        case _:
            raise ValueError(f"config must name a class in each slot, got {value!r:.80}")
    if kind in (ViT, MAE, TextTower, TextDecoder) and not is_filled({"class_path": path, "init_args": arguments}):
        arguments = fill_arguments(json.dumps({"class_path": path, "init_args": arguments}))
    defaults = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    defaults = {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty}
    return Part(kind, {**defaults, **arguments})


def is_filled(value: object) -> bool:
    """Return whether a config gives all keyword arguments, in all slots, whose default is not None.

    The owner of a slot supplies the others.
    """
    match value:
        case {"class_path": str(path), **rest}:
            kind, arguments = model_config.find_class(path), rest.get("init_args", {})
        case str(path):
            kind, arguments = model_config.find_class(path), {}
        case _:
            return True
    if kind is None:
        return True
    parameters = inspect.signature(kind).parameters.values()
    keywords = {parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    optional = {parameter.name for parameter in parameters if parameter.default is None}
    return keywords - optional <= arguments.keys() and all(map(is_filled, arguments.values()))


@lru_cache(maxsize=8)
def fill_arguments(config: str) -> Mapping[str, Any]:
    """Return the arguments of a config in JSON with all defaults. They are cached: filling them takes a second."""
    return model_config.fill_defaults(json.loads(config))["init_args"]


class Trunk(NamedTuple):
    """An Encoder in the terms of other libraries' configs.

    Args:
        act: None for SwiGLU, which has its own.
        problems: rules of most libraries that the Encoder breaks.
    """

    dim: int
    depth: int
    heads: int
    eps: int | float
    hidden: int
    act: Part | None
    qk_norm: Part | None
    scale: int | float | None
    final_norm: bool
    causal: bool
    problems: tuple[str, ...]


def read_trunk(value: object, *, qk_norm: bool = False, causal: bool = False) -> Trunk:
    """Return the trunk of an Encoder's config. Args: qk_norm, causal: whether the other library supports them."""
    encoder = read_part(value)
    if encoder.kind is not Encoder:
        raise ValueError(f"encoder must be a vitkit.nn.Encoder, got {encoder.kind.__name__}")
    args = encoder.args
    attention, norm, mlp, residual, position = (
        read_part(args[name]) for name in ("attention", "norm", "mlp", "residual", "position")
    )
    attention_args, dim, heads = attention.args, args["dim"], args["heads"]
    checks = {
        "encoder must be without causal and memory_dim": (
            (causal or not args["causal"]) and args["memory_dim"] is None
        ),
        f"attention must be vitkit.nn.Attention, got {attention.kind.__name__}": attention.kind is Attention,
        "attention must have biases": attention_args.get("bias", True),
        "attention must be without kv_heads": attention_args.get("kv_heads") in (None, heads),
        "attention must be without head_dim": attention_args.get("head_dim") in (None, dim / heads),
        "attention must be without scale": attention_args.get("scale") is None,
        "attention must be without qk_norm": qk_norm or attention_args.get("qk_norm") is None,
        "attention must look at every key, by a softmax": read_part(attention_args.get("core", MeasuredCore)).kind
        in SOFTMAX_CORES,
        f"norm must be LayerNorm with weight and bias, got {norm.kind.__name__}": is_layer_norm(norm),
        f"mlp must be vitkit.nn.MLP or SwiGLU, got {mlp.kind.__name__}": mlp.kind in (MLP, SwiGLU),
        "mlp must have biases": mlp.args.get("bias", True),
        "mlp must be gated by SiLU": read_part(mlp.args.get("gate", nn.SiLU)).kind is nn.SiLU,
        f"residual must be vitkit.nn.PreNorm, got {residual.kind.__name__}": residual.kind is PreNorm,
        f"position must be left out, got {position.kind.__name__}": position.kind is Position,
    }
    return Trunk(
        dim,
        args["depth"],
        heads,
        norm.args.get("eps") or 0,
        int(dim * mlp.args.get("ratio", 0)),
        read_part(mlp.args["act"]) if "act" in mlp.args else None,
        None if attention_args.get("qk_norm") is None else read_part(attention_args["qk_norm"]),
        residual.args.get("scale"),
        args["final_norm"],
        args["causal"],
        tuple(list_failures(checks)),
    )


def is_layer_norm(norm: Part) -> bool:
    affine = norm.args.get("elementwise_affine", True) and norm.args.get("bias", True)
    return norm.kind in (LayerNorm, nn.LayerNorm) and bool(affine)


def is_linear(head: Part) -> bool:
    return head.kind is nn.Linear


def list_failures(checks: Mapping[str, object]) -> list[str]:
    """Return the rules that do not hold."""
    return [rule for rule, holds in checks.items() if not holds]


def list_type_errors(values: Mapping[str, object], defaults: Mapping[str, object]) -> list[str]:
    """Return a rule for each value whose type is not that of its default; an int may stand for a float."""
    rules: list[str] = []
    for name, default in defaults.items():
        value = values[name]
        match default:
            case bool():
                kind, fits = "true or false", isinstance(value, bool)
            case int() if name.endswith("_id"):
                kind, fits = "an id, a whole number from 0 on", type(value) is int and value >= 0
            case int():
                kind, fits = "a whole number above 0", type(value) is int and value > 0
            case float():
                kind, fits = "a number, 0 or above", type(value) in (int, float) and 0 <= cast(float, value) < math.inf
            case str():
                kind, fits = "a word", isinstance(value, str)
            case list() | tuple():
                items = value if isinstance(value, list | tuple) else [None]
                kind, fits = "a list of numbers", all(type(item) in (int, float) for item in items)
            case _:
                continue
        rules += [] if fits else [f"{name} must be {kind}, got {name}={value!r:.80}"]
    return rules


def refuse_problems(target: str, problems: Iterable[str]) -> None:
    """Raise ValueError with all problems, if there are any."""
    if problems := [*problems]:
        raise ValueError(f"{target} is not supported: {'; '.join(problems)}")


def make_encoder_config(
    dim: int,
    depth: int,
    heads: int,
    *,
    eps: int | float,
    mlp: object,
    scale: int | float | None = None,
    causal: bool = False,
) -> dict:
    """Return the config of an Encoder with these parts."""
    norm = {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": eps}}
    args = {"dim": dim, "depth": depth, "heads": heads, "norm": norm, "mlp": mlp}
    if causal:
        args["causal"] = True
    if scale is not None:
        args["residual"] = {"class_path": "vitkit.nn.PreNorm", "init_args": {"scale": scale}}
    return {"class_path": "vitkit.nn.Encoder", "init_args": args}


def compute_mlp_ratio(hidden: int, dim: int) -> float:
    """Return a ratio with int(dim * ratio) = hidden, such as 4.0 for 3072 of 768."""
    return next(ratio for ratio in (hidden / dim, (hidden + 0.5) / dim) if int(dim * ratio) == hidden)


def parse_size(value: object, name: str) -> tuple[int, int]:
    """Return (h, w) of a value that may be one number. Raises: ValueError."""
    match value:
        case int(side) if side > 0:
            return side, side
        case [int(height), int(width)] if min(height, width) > 0:
            return height, width
    raise ValueError(f"{name} must be one positive number, or two (h, w), got {name}={value!r:.80}")


def compute_grid(image_size: object, patch_size: object) -> tuple[int, int]:
    """Return the grid (h, w) of patches of an image. Raises: ValueError."""
    (height, width), (rows, columns) = parse_size(image_size, "image_size"), parse_size(patch_size, "patch_size")
    if height % rows or width % columns:
        raise ValueError(
            f"image_size must be a multiple of patch_size, got image_size={height, width}, patch_size={rows, columns}"
        )
    return height // rows, width // columns
