"""Weights in safetensors files: strict loading, with a list of all differences when it fails."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vitkit.support.files import replace_file

Shapes = Mapping[str, tuple[int, ...]]


def refuse_tied(state: Mapping[str, Tensor]) -> None:
    """Raise ValueError if two names share one tensor."""
    places = Counter((tensor.data_ptr(), tensor.shape) for tensor in state.values() if tensor.numel())
    if tied := [name for name, tensor in state.items() if places[tensor.data_ptr(), tensor.shape] > 1]:
        raise ValueError(f"parameters must be saved under one name each, got one for {', '.join(tied)}")


def save_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write model.safetensors, replacing it as a whole."""
    refuse_tied(state)
    with replace_file(folder / "model.safetensors") as temporary:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(plain, temporary, metadata={"format": "pt"})


def load(
    model: nn.Module, state: Mapping[str, Tensor], *, missing: Iterable[str] = (), unused: Iterable[str] = ()
) -> None:
    """Copy all of `state` into all of `model`.

    Args:
        missing: patterns such as "head.*" of parameters that may keep their initial values.
        unused: patterns of tensors in `state` that may be left over. A tensor of another shape must match both.

    Raises: ValueError that lists every other difference.
    """
    shapes = get_shapes(model.state_dict())
    if problems := compare_shapes(shapes, get_shapes(state), tuple(missing), tuple(unused)):
        raise ValueError("\n  ".join(["state must fit the model, got", *problems]))
    model.load_state_dict({k: v for k, v in state.items() if shapes.get(k) == v.shape}, strict=False)


def compare_shapes(model: Shapes, file: Shapes, missing: Sequence[str] = (), unused: Sequence[str] = ()) -> list[str]:
    """Return a line for each name that differs and matches no pattern: `-` missing, `+` surplus, `!` another shape."""

    def describe(name: str) -> str | None:
        excuses = [any(fnmatchcase(name, pattern) for pattern in patterns) for patterns in (missing, unused)]
        match name in model, name in file:
            case True, False if not excuses[0]:
                return f"- {name}: model {model[name]}, not in the file"
            case False, True if not excuses[1]:
                return f"+ {name}: file {file[name]}, not in the model"
            case True, True if model[name] != file[name] and not all(excuses):
                return f"! {name}: model {model[name]}, file {file[name]}"
        return None

    return [line for name in sorted({*model, *file}) if (line := describe(name))]


def read_header(path: Path) -> Shapes:
    """Return the shapes in a .safetensors file, without reading the tensors."""
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def get_shapes(state: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
