"""Tensors from files of weights that may come from a stranger: nothing in them is executed."""

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

from vitkit.bundle.weights import Shapes, get_shapes, read_header
from vitkit.support.errors import prefix_errors

ENDS = {".safetensors", ".pth", ".pt", ".bin", ".npz"}
# Keys under which training programs save the weights among other things, and prefixes that they put before names.
NESTS = ("model", "state_dict", "teacher", "module")
PREFIXES = ("module.", "_orig_mod.", "backbone.")
# Buffers that models once stored beside their weights, by the last part of their names.
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
    """The content of a file of weights: tensors by name, arguments of the training that wrote it, and notes."""

    state: dict[str, Tensor]
    arguments: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()


def read_weights(path: Path) -> WeightFile:
    """Read the tensors of a .safetensors, .pth, .pt, .bin or .npz, or of the shards of an .index.json, as float32.

    Raises: ValueError, one line that starts with the path, for a file that would run code, is broken, or holds no
    weights.
    """
    with prefix_errors(path):
        weights = read_file(path)
        state = {name: weights.state[name] for name in weights.state if name.rpartition(".")[2] not in NUMBERS}
        return convert_to_float32(weights._replace(state=state))


def read_shapes(path: Path) -> Shapes:
    """Return the shapes of the tensors of a file, by its header alone if it has one."""
    if path.suffix != ".safetensors":
        return get_shapes(read_weights(path).state)
    with prefix_errors(path), report_damage(path, "safetensors"):
        return read_header(path)


def find_weights(folder: Path, stems: tuple[str, ...]) -> Path:
    """Return the path of a folder's weights, or of the index of their shards; of a pickle only as a last resort.

    Raises: ValueError if there is none.
    """
    ends = (".safetensors", f".safetensors{INDEX}", ".bin", f".bin{INDEX}")
    names = [f"{stem}{end}" for end in ends for stem in stems]
    if path := next((folder / name for name in names if (folder / name).is_file()), None):
        return path
    raise ValueError(f"{folder} must hold weights, got none of {', '.join(names)}")


def convert_to_float32(weights: WeightFile) -> WeightFile:
    """Convert tensors of half precision, slow or missing on a CPU, and of double precision, twice as large for nothing.

    Raises: ValueError as `check_tensors` does.
    """
    check_tensors(weights.state)
    state, notes = dict(weights.state), [*weights.notes]
    for precision, dtypes, numbers in (("half", HALF, "the same"), ("double", DOUBLE, "rounded")):
        if names := [name for name, tensor in state.items() if tensor.dtype in dtypes]:
            state |= {name: state[name].float() for name in names}
            notes.append(
                f"{len(names)} tensors of {precision} precision are kept in float32; the numbers are {numbers}"
            )
    return WeightFile(state, weights.arguments, tuple(notes))


def check_tensors(state: Mapping[str, Tensor]) -> None:
    """Raise ValueError for tensors larger than their storage in the file, sparse ones, or ones that hold no floats."""
    for name, tensor in state.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            place = f"{tensor.layout} on {tensor.device}"
            raise ValueError(f"a file of weights must hold plain tensors, got {place} for {name}")
        count, size = tensor.numel(), tensor.untyped_storage().nbytes()
        if count * tensor.element_size() > size:
            raise ValueError(f"a file of weights must hold its numbers, got {count:,} in {size:,} bytes for {name}")
    # Beside an image tower a text tower may hold integers: it may be left out.
    check_dtypes({name: state[name] for name in state if name.startswith("visual.")} or state)


def check_dtypes(state: Mapping[str, Tensor]) -> None:
    """Raise ValueError for tensors that hold no floats."""
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
                tensors = load_file(path)
            state, notes = strip_prefixes(tensors)
            return WeightFile(state, {}, tuple(notes))
        case ".npz":
            return WeightFile({name: torch.from_numpy(array) for name, array in read_arrays(path).items()})
        case ".pth" | ".pt" | ".bin":
            return find_tensors(load_pickle(path))
    raise ValueError(f"a file of weights must end in one of {', '.join(sorted(ENDS))}")


def read_shards(index: Path) -> WeightFile:
    """Read the shards of an index. Raises: ValueError unless they lie beside it and hold the tensors that it lists."""
    with report_damage(index, "names of shards (weight_map)"):
        names: dict[str, str] = dict(json.loads(index.read_text("utf-8"))["weight_map"])
    if outside := sorted(name for name in {*names.values()} if Path(name).name != name):
        raise ValueError(f"shards must lie beside it, got {outside[0]}")
    shards: list[WeightFile] = []
    for name in sorted({*names.values()}):
        with prefix_errors(index.with_name(name)) as shard_path:
            shards.append(read_file(shard_path))
    state = {name: tensor for weights in shards for name, tensor in weights.state.items()}
    if differing := sorted(names.keys() ^ state.keys()):
        raise ValueError(f"its shards must hold the tensors that it lists, got other than {', '.join(differing[:3])}")
    return WeightFile(state)


def load_pickle(path: Path) -> object:
    """Load tensors and plain data. The only class is argparse.Namespace, which MAE's files hold: it runs nothing."""
    with (
        report_damage(path, "PyTorch"),
        torch.serialization.safe_globals([argparse.Namespace]),
        warnings.catch_warnings(action="ignore", category=UserWarning),  # about pickles that it refuses
    ):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > PACKED * path.stat().st_size:
            raise ValueError(f"a file of weights must hold its numbers, got {size:,} bytes packed to hardly any")
    with report_damage(path, NUMPY), path.open("rb") as file, np.load(file, allow_pickle=False) as file_arrays:
        arrays = {name: file_arrays[name] for name in file_arrays.files}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("bytes in place of arrays")
        return arrays


class RefusedError(ValueError):
    """An error for a file that would run code."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused, nothing in it was run: a file of weights must hold tensors only, {reason}")


@contextmanager
def report_damage(path: Path, kind: str) -> Iterator[None]:
    """Replace a library's errors about a broken file, or one of another kind, by a ValueError without its advice."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # of unpickling, zip, safetensors, numpy, down to KeyError
        if match := re.search(r"GLOBAL (\S+)", str(error)):
            raise RefusedError(f"it asks for {match[1]}") from None
        actual = detect_kind(path)
        if actual == kind and "allow_pickle" in str(error):
            raise RefusedError("it holds objects") from None
        message = re.split(r"\. |\n", str(error).rpartition("WeightsUnpickler error: ")[2])[0]
        if actual == kind and isinstance(error, UnpicklingError):
            raise RefusedError(textwrap.shorten(message, 160)) from None
        reason = textwrap.shorten(f"one that is damaged or cut short ({message})", 160) if actual == kind else actual
        raise ValueError(f"must be a whole file of {kind}, got {reason}; fetch it again, or check its suffix") from None


def detect_kind(path: Path) -> str:
    """Return the kind of a file by its first bytes."""
    with path.open("rb") as file:
        start = file.read(512)
    return next((kind for begin, kind in BEGINNINGS.items() if re.match(begin, start, re.DOTALL)), "other bytes")


def find_tensors(content: object) -> WeightFile:
    """Return the tensors in the content that a training program saved. Raises: ValueError if there are none."""
    notes: list[str] = []
    arguments: Mapping[str, Any] = {}
    while isinstance(content, Mapping) and not holds_tensors(content):
        if isinstance(args := content.get("args"), argparse.Namespace):
            arguments = vars(args)
        if not (nests := [name for name in NESTS if isinstance(content.get(name), Mapping)]):
            break
        notes += [f"{name} (averaged weights) is left out; {nests[0]} is read" for name in AVERAGED & content.keys()]
        content = content[nests[0]]
    if not (isinstance(content, Mapping) and content and holds_tensors(content)):
        kind = type(content).__name__
        text = f"a mapping with {', '.join(map(str, [*content][:5]))}" if isinstance(content, Mapping) else kind
        raise ValueError(f"a file of weights must hold tensors by name, maybe below {', '.join(NESTS)}, got {text}")
    state, prefix_notes = strip_prefixes(content)
    return WeightFile(state, arguments, (*notes, *prefix_notes))


def holds_tensors(content: Mapping[Any, object]) -> bool:
    return all(isinstance(value, Tensor) for value in content.values())


def strip_prefixes(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Remove the prefixes that wrappers put before names; return a note of the tensors that have none."""
    notes: list[str] = []
    for prefix in PREFIXES:
        if stripped := {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}:
            if others := [name for name in state if not name.startswith(prefix)]:
                notes.append(f"{len(others)} tensors beside {prefix}* are left out, such as {others[0]}")
            state = stripped
    return dict(state), notes
