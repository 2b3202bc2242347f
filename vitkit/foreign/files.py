"""Tensors from files that may come from a stranger: nothing in them is run."""

import argparse
import json
import re
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitkit.weights import blaming

ENDS = {".safetensors", ".pth", ".pt", ".bin", ".npz"}
# Where training programs keep the weights among other things, and what they put in front of each name.
NESTS = ("model", "state_dict", "teacher", "module")
PREFIXES = ("module.", "_orig_mod.", "backbone.")
AVERAGED = {"model_ema", "state_dict_ema", "ema"}
INDEX = ".index.json"
WEIGHTS = ("model", "pytorch_model")  # as transformers and timm call them


class Held(NamedTuple):
    """What a file holds: tensors by name, the arguments of the training that wrote it, and what was left out."""

    state: dict[str, Tensor]
    arguments: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()


def tensors(path: Path) -> Held:
    """The tensors of a .safetensors, .pth, .pt, .bin or .npz, out of their nest, or of the shards of an .index.json.

    Raises: ValueError, one line that starts with the path, for a file that would run code, is broken, or holds others.
    """
    with blaming(path):
        return in_float32(read(path))


def weights_in(folder: Path, stems: tuple[str, ...]) -> Path:
    """The file of weights, or the index of its shards; pickles only where there is nothing else."""
    ends = (".safetensors", f".safetensors{INDEX}", ".bin", f".bin{INDEX}")
    names = [f"{stem}{end}" for end in ends for stem in stems]
    if found := next((folder / name for name in names if (folder / name).is_file()), None):
        return found
    raise ValueError(f"{folder} must hold weights, got none of {', '.join(names)}")


def in_float32(held: Held) -> Held:
    """Half precision, in which files travel, is slow or missing on a CPU; the numbers stay the same."""
    half = [name for name, tensor in held.state.items() if tensor.dtype in (torch.float16, torch.bfloat16)]
    if not half:
        return held
    state = {**held.state, **{name: held.state[name].float() for name in half}}
    note = f"{len(half)} tensors of half precision are kept in float32; the numbers are the same"
    return held._replace(state=state, notes=(*held.notes, note))


def read(path: Path) -> Held:
    if path.name.endswith(INDEX):
        return merged(path)
    match path.suffix:
        case ".safetensors":
            state, notes = bare(load_file(path))
            return Held(state, {}, tuple(notes))
        case ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return Held({name: torch.from_numpy(arrays[name]) for name in arrays.files})
        case ".pth" | ".pt" | ".bin":
            return unnested(unpickled(path))
    raise ValueError(f"a file of weights must end in one of {', '.join(sorted(ENDS))}")


def merged(index: Path) -> Held:
    """Shards must lie beside their index, and hold what it says."""
    names: Mapping[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
    if outside := sorted(name for name in {*names.values()} if Path(name).name != name):
        raise ValueError(f"shards must lie beside it, got {outside[0]}")
    parts = [read(index.with_name(name)) for name in sorted({*names.values()})]
    state = {name: tensor for part in parts for name, tensor in part.state.items()}
    if differing := sorted(names.keys() ^ state.keys()):
        raise ValueError(f"its shards must hold the tensors that it lists, got other than {', '.join(differing[:3])}")
    return Held(state)


def unpickled(path: Path) -> object:
    """Tensors and plain data. Of classes only argparse.Namespace, which MAE's files hold: making one runs nothing."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it asks for {found[1]}" if found else textwrap.shorten(str(error), 200)
        raise ValueError(f"refused, nothing in it was run: a file of weights must hold tensors only, {what}") from None


def unnested(held: object) -> Held:
    """The tensors in what a training program saved."""
    notes: list[str] = []
    arguments: Mapping[str, Any] = {}
    while isinstance(held, Mapping) and not tensorial(held):
        if isinstance(told := held.get("args"), argparse.Namespace):
            arguments = vars(told)
        if not (inside := [name for name in NESTS if isinstance(held.get(name), Mapping)]):
            break
        notes += [f"{name} (averaged weights) is left out; {inside[0]} is read" for name in AVERAGED & held.keys()]
        held = held[inside[0]]
    if not (isinstance(held, Mapping) and held and tensorial(held)):
        kinds = (
            f"a mapping with {', '.join(map(str, [*held][:5]))}" if isinstance(held, Mapping) else type(held).__name__
        )
        raise ValueError(f"a file of weights must hold tensors by name, maybe below {', '.join(NESTS)}, got {kinds}")
    state, left = bare(held)
    return Held(state, arguments, (*notes, *left))


def tensorial(held: Mapping[Any, object]) -> bool:
    return all(isinstance(value, Tensor) for value in held.values())


def bare(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Without what wrappers put in front of names, and with a note of what lies beside."""
    notes: list[str] = []
    for prefix in PREFIXES:
        if inside := {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}:
            if beside := [name for name in state if not name.startswith(prefix)]:
                notes.append(f"{len(beside)} tensors beside {prefix}* are left out, such as {beside[0]}")
            state = inside
    return dict(state), notes
