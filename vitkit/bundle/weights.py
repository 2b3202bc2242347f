"""Weights in and out of safetensors files: strict loading, and the differences when it fails."""

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
    """Raise ValueError where two names stand for one tensor."""
    places = Counter((tensor.data_ptr(), tensor.shape) for tensor in state.values() if tensor.numel())
    if tied := [name for name, tensor in state.items() if places[tensor.data_ptr(), tensor.shape] > 1]:
        raise ValueError(f"parameters must be saved under one name each, got one for {', '.join(tied)}")


def save_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Replace model.safetensors as a whole."""
    refuse_tied(state)
    with replace_file(folder / "model.safetensors") as path:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(plain, path, metadata={"format": "pt"})


def load(
    model: nn.Module, state: Mapping[str, Tensor], *, missing: Iterable[str] = (), unused: Iterable[str] = ()
) -> None:
    """Copy `state` into `model`, all of it into all of it, or raise one error that lists every difference.

    Patterns such as "head.*" excuse by name: `missing` what may keep its initial values, `unused` what may be left
    over. A tensor of another shape is both.
    """
    own = model.state_dict()
    if problems := differences(shapes_of(own), shapes_of(state), tuple(missing), tuple(unused)):
        raise ValueError("\n  ".join(["state must fit the model, got", *problems]))
    model.load_state_dict({k: v for k, v in state.items() if k in own and v.shape == own[k].shape}, strict=False)


def differences(own: Shapes, found: Shapes, missing: Sequence[str] = (), unused: Sequence[str] = ()) -> list[str]:
    """One line per name that does not fit and is not excused: `-` missing, `+` surplus, `!` another shape."""

    def line(name: str) -> str | None:
        excused = [any(fnmatchcase(name, pattern) for pattern in patterns) for patterns in (missing, unused)]
        match name in own, name in found:
            case True, False if not excused[0]:
                return f"- {name}: model {own[name]}, not in the file"
            case False, True if not excused[1]:
                return f"+ {name}: file {found[name]}, not in the model"
            case True, True if own[name] != found[name] and not all(excused):
                return f"! {name}: model {own[name]}, file {found[name]}"
        return None

    return [text for name in sorted({*own, *found}) if (text := line(name))]


def header(path: Path) -> Shapes:
    """Of a .safetensors, whose tensors are not read."""
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def shapes_of(state: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
