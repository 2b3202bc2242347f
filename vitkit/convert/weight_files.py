"""Tensors from files that may come from a stranger: nothing in them is run."""

import argparse
import json
import re
import textwrap
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitkit.bundle.weights import Shapes, header, shapes_of
from vitkit.support.errors import prefix_errors

ENDS = {".safetensors", ".pth", ".pt", ".bin", ".npz"}
# Where training programs keep the weights among other things, and what they put in front of each name.
NESTS = ("model", "state_dict", "teacher", "module")
PREFIXES = ("module.", "_orig_mod.", "backbone.")
# What models once stored beside their weights, as the ends of names: numbers of positions, and sizes.
NUMBERS = ("position_ids", "input_resolution", "context_length", "vocab_size")
AVERAGED = {"model_ema", "state_dict_ema", "ema"}
INDEX = ".index.json"
HF_STEMS = ("model", "pytorch_model")  # as transformers and timm call them
NUMPY = "NumPy's arrays"
BEGINNINGS = {
    rb"\Z": "an empty one",
    rb".{5}\0\0\0\{": "safetensors",  # the length of its header, and the header
    rb"PK.*\.npy": NUMPY,
    rb"PK.*(data\.pkl|\.format_version|byteorder)": "PyTorch",
    rb"PK": "a zip archive",
    rb"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46": "PyTorch",  # with which torch.save began before it wrote zips
    rb"\x80": "a pickle that torch.save did not write",
    rb"\x93NUMPY": "a single array of NumPy",
    rb"\s*[\[{]": "other JSON",
    rb"\s*<": "a web page",
    rb"version https://git-lfs": "a pointer of Git LFS to it",
}
HALF, DOUBLE = (torch.float16, torch.bfloat16), (torch.float64,)
KNOWN = (torch.float32, *HALF, *DOUBLE)
PACKED = 100  # times smaller than its arrays, which no file of trained weights is: zeros are, 1,000 times


class WeightFile(NamedTuple):
    """What a file holds: tensors by name, the arguments of the training that wrote it, and what was left out."""

    state: dict[str, Tensor]
    arguments: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()


def read_weights(path: Path) -> WeightFile:
    """The tensors of a .safetensors, .pth, .pt, .bin or .npz, out of their nest, or of the shards of an .index.json.

    Raises: ValueError, one line that starts with the path, for a file that would run code, is broken, or holds others.
    """
    with prefix_errors(path):
        held = read_file(path)
        state = {name: held.state[name] for name in held.state if name.rpartition(".")[2] not in NUMBERS}
        return convert_to_float32(held._replace(state=state))


def read_shapes(path: Path) -> Shapes:
    """Of the tensors of a file of weights, which are not read where a header says them."""
    if path.suffix != ".safetensors":
        return shapes_of(read_weights(path).state)
    with prefix_errors(path), report_damage(path, "safetensors"):
        return header(path)


def find_weights(folder: Path, stems: tuple[str, ...]) -> Path:
    """The file of weights, or the index of its shards; pickles only where there is nothing else."""
    ends = (".safetensors", f".safetensors{INDEX}", ".bin", f".bin{INDEX}")
    names = [f"{stem}{end}" for end in ends for stem in stems]
    if found := next((folder / name for name in names if (folder / name).is_file()), None):
        return found
    raise ValueError(f"{folder} must hold weights, got none of {', '.join(names)}")


def convert_to_float32(held: WeightFile) -> WeightFile:
    """Half precision, in which files travel, is slow or missing on a CPU, and double twice as large for nothing."""
    check_tensors(held.state)
    state, notes = dict(held.state), [*held.notes]
    for kind, dtypes, numbers in (("half", HALF, "the same"), ("double", DOUBLE, "rounded")):
        if names := [name for name, tensor in state.items() if tensor.dtype in dtypes]:
            state |= {name: state[name].float() for name in names}
            notes.append(f"{len(names)} tensors of {kind} precision are kept in float32; the numbers are {numbers}")
    return WeightFile(state, held.arguments, tuple(notes))


def check_tensors(state: Mapping[str, Tensor]) -> None:
    """Raises: ValueError for what would take more memory than the file has numbers, or is not of floating point."""
    for name, tensor in state.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            found = f"{tensor.layout} on {tensor.device}"
            raise ValueError(f"a file of weights must hold plain tensors, got {found} for {name}")
        numbers, held = tensor.numel(), tensor.untyped_storage().nbytes()
        if numbers * tensor.element_size() > held:
            raise ValueError(f"a file of weights must hold its numbers, got {numbers:,} in {held:,} bytes for {name}")
    # Beside an image tower a text tower may hold integers, and may be left out with them.
    check_dtypes({name: state[name] for name in state if name.startswith("visual.")} or state)


def check_dtypes(state: Mapping[str, Tensor]) -> None:
    """Raises: ValueError for tensors that are no weights."""
    if others := [f"{format_dtype(state[name].dtype)} for {name}" for name in state if state[name].dtype not in KNOWN]:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise ValueError(f"weights must be of {', '.join(map(format_dtype, KNOWN))}, got {', '.join(others[:3])}{more}")


def format_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read_file(path: Path) -> WeightFile:
    if path.name.endswith(INDEX):
        return read_shards(path)
    match path.suffix:
        case ".safetensors":
            with report_damage(path, "safetensors"):
                held = load_file(path)
            state, notes = strip_prefixes(held)
            return WeightFile(state, {}, tuple(notes))
        case ".npz":
            return WeightFile({name: torch.from_numpy(array) for name, array in read_arrays(path).items()})
        case ".pth" | ".pt" | ".bin":
            return find_tensors(load_pickle(path))
    raise ValueError(f"a file of weights must end in one of {', '.join(sorted(ENDS))}")


def read_shards(index: Path) -> WeightFile:
    """Shards must lie beside their index, and hold what it says."""
    with report_damage(index, "names of shards (weight_map)"):
        names: dict[str, str] = dict(json.loads(index.read_text("utf-8"))["weight_map"])
    if outside := sorted(name for name in {*names.values()} if Path(name).name != name):
        raise ValueError(f"shards must lie beside it, got {outside[0]}")
    parts: list[WeightFile] = []
    for name in sorted({*names.values()}):
        with prefix_errors(index.with_name(name)) as shard:
            parts.append(read_file(shard))
    state = {name: tensor for part in parts for name, tensor in part.state.items()}
    if differing := sorted(names.keys() ^ state.keys()):
        raise ValueError(f"its shards must hold the tensors that it lists, got other than {', '.join(differing[:3])}")
    return WeightFile(state)


def load_pickle(path: Path) -> object:
    """Tensors and plain data. Of classes only argparse.Namespace, which MAE's files hold: making one runs nothing."""
    with (
        report_damage(path, "PyTorch"),
        torch.serialization.safe_globals([argparse.Namespace]),
        warnings.catch_warnings(action="ignore", category=UserWarning),  # of pickles that it refuses
    ):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > PACKED * path.stat().st_size:
            raise ValueError(f"a file of weights must hold its numbers, got {size:,} bytes packed to hardly any")
    with report_damage(path, NUMPY), path.open("rb") as file, np.load(file, allow_pickle=False) as held:
        found = {name: held[name] for name in held.files}
        if not all(isinstance(array, np.ndarray) for array in found.values()):
            raise ValueError("bytes in place of arrays")
        return found


class RefusedError(ValueError):
    """A file that would run code."""

    def __init__(self, what: str) -> None:
        super().__init__(f"refused, nothing in it was run: a file of weights must hold tensors only, {what}")


@contextmanager
def report_damage(path: Path, kind: str) -> Iterator[None]:
    """Whatever a library says of a broken file, or of one of another kind, in one wording; never its advice."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # of unpickling, zip, safetensors, numpy, down to KeyError
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise RefusedError(f"it asks for {found[1]}") from None
        held = detect_kind(path)
        if held == kind and "allow_pickle" in str(error):
            raise RefusedError("it holds objects") from None
        said = re.split(r"\. |\n", str(error).rpartition("WeightsUnpickler error: ")[2])[0]
        if held == kind and isinstance(error, UnpicklingError):
            raise RefusedError(textwrap.shorten(said, 160)) from None
        reason = textwrap.shorten(f"one that is damaged or cut short ({said})", 160) if held == kind else held
        raise ValueError(f"must be a whole file of {kind}, got {reason}; fetch it again, or check its suffix") from None


def detect_kind(path: Path) -> str:
    """What a file looks like, by how it begins."""
    with path.open("rb") as file:
        start = file.read(512)
    return next((kind for begin, kind in BEGINNINGS.items() if re.match(begin, start, re.DOTALL)), "other bytes")


def find_tensors(held: object) -> WeightFile:
    """The tensors in what a training program saved."""
    notes: list[str] = []
    arguments: Mapping[str, Any] = {}
    while isinstance(held, Mapping) and not holds_tensors(held):
        if isinstance(told := held.get("args"), argparse.Namespace):
            arguments = vars(told)
        if not (inside := [name for name in NESTS if isinstance(held.get(name), Mapping)]):
            break
        notes += [f"{name} (averaged weights) is left out; {inside[0]} is read" for name in AVERAGED & held.keys()]
        held = held[inside[0]]
    if not (isinstance(held, Mapping) and held and holds_tensors(held)):
        kinds = (
            f"a mapping with {', '.join(map(str, [*held][:5]))}" if isinstance(held, Mapping) else type(held).__name__
        )
        raise ValueError(f"a file of weights must hold tensors by name, maybe below {', '.join(NESTS)}, got {kinds}")
    state, left = strip_prefixes(held)
    return WeightFile(state, arguments, (*notes, *left))


def holds_tensors(held: Mapping[Any, object]) -> bool:
    return all(isinstance(value, Tensor) for value in held.values())


def strip_prefixes(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Without what wrappers put in front of names, and with a note of what lies beside."""
    notes: list[str] = []
    for prefix in PREFIXES:
        if inside := {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}:
            if beside := [name for name in state if not name.startswith(prefix)]:
                notes.append(f"{len(beside)} tensors beside {prefix}* are left out, such as {beside[0]}")
            state = inside
    return dict(state), notes
