"""Build models on the meta device: shapes without numbers, so that a check needs no memory."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

# The attributes of every module; parameters, buffers and submodules are visited apart.
REGISTRIES = vars(nn.Module()).keys()
DRAWS = {"normal_", "uniform_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_"}


@contextmanager
def use_meta_device(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Build the models inside on the meta device.

    Raises: ValueError as soon as a model is far larger than `shapes`, since a config may ask for a billion blocks, with
    hardly any parameters.
    """
    expected = sum(map(math.prod, shapes.values()))
    most = 1_000 + 20 * len(shapes)  # modules: a block has 2 a tensor; below this, a list of differences says more
    total, modules = 0, 0

    def count_parameters(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal total
        total += parameter.numel()
        if total > 100 * expected:
            raise ValueError(f"model must fit its weights of {expected:,} numbers, got over {total:,} parameters")

    def count_modules(module: nn.Module, name: str, submodule: nn.Module) -> None:
        nonlocal modules
        modules += 1
        if modules > most:
            raise ValueError(f"model must fit its weights of {len(shapes):,} tensors, got over {most:,} modules")

    with (
        register_module_parameter_registration_hook(count_parameters),
        register_module_module_registration_hook(count_modules),
        torch.device("meta"),
        NoInitialisation(),
    ):
        yield


def refuse_meta_tensors(model: nn.Module) -> None:
    """Raise ValueError for tensors without numbers after loading, with which a model would fail silently."""
    tensors = chain(model.named_parameters(), model.named_buffers(), iterate_attributes(model))
    if names := [name for name, tensor in tensors if tensor.is_meta]:
        raise ValueError(
            f"model must hold no tensors but those in its file, got {', '.join(names[:10])} without numbers; compute "
            "such tables in forward, or register them as persistent buffers"
        )


def iterate_attributes(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in plain attributes of modules, also in lists, tuples and mappings."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in REGISTRIES:
                yield from iterate_tensors(f"{name}.{key}".lstrip("."), value)


def iterate_tensors(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a value, by dotted name."""
    match value:
        case Tensor():
            yield name, value
        case Mapping():
            for key, item in value.items():
                yield from iterate_tensors(f"{name}.{key}", item)
        case list() | tuple():
            for index, item in enumerate(value):
                yield from iterate_tensors(f"{name}.{index}", item)


class NoInitialisation(TorchFunctionMode):
    """Skip initial numbers: on the meta device torch would import its compiler or sympy for them, in two seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in {*DRAWS, "div_"} and (tensor := args[0] if args else kwargs["tensor"]).is_meta:
            return tensor
        return func(*args, **kwargs)
