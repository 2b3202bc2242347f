"""Models as their shapes alone, before there is memory for their numbers."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

# What every module has: parameters, buffers and submodules are gone through by themselves.
REGISTRIES = vars(nn.Module()).keys()
DRAWS = {"normal_", "uniform_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_"}


@contextmanager
def unallocated(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """What is built inside has shapes and no numbers.

    Raises: ValueError as soon as it is far larger than a file of `shapes`: a config may ask for a billion blocks.
    """
    held = sum(map(math.prod, shapes.values()))
    made = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal made
        made += parameter.numel()
        if made > 100 * held:  # below that the differences are worth listing
            raise ValueError(f"model must fit model.safetensors ({held:,} numbers), got over {made:,} parameters")

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"), Undrawn():
            yield
    finally:
        hook.remove()


def refuse_unallocated(model: nn.Module) -> None:
    """Raise ValueError for what has no numbers after loading: the model would answer with none, and no error."""
    tensors = chain(model.named_parameters(), model.named_buffers(), iterate_attributes(model))
    if names := [name for name, tensor in tensors if tensor.is_meta]:
        raise ValueError(
            f"model must hold no tensors but those in its file, got {', '.join(names[:10])} without numbers; compute "
            "such tables in forward, or register them as persistent buffers"
        )


def iterate_attributes(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that modules keep as plain attributes, or in lists, tuples and mappings there."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in REGISTRIES:
                yield from iterate_tensors(f"{name}.{key}".lstrip("."), value)


def iterate_tensors(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    match value:
        case Tensor():
            yield name, value
        case Mapping():
            for key, item in value.items():
                yield from iterate_tensors(f"{name}.{key}", item)
        case list() | tuple():
            for index, item in enumerate(value):
                yield from iterate_tensors(f"{name}.{index}", item)


class Undrawn(TorchFunctionMode):
    """No random numbers are drawn: where they have no memory, torch imports its compiler for it, in two seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
