"""Tensors from files of weights that may come from a stranger: nothing in them is executed."""

import argparse
import json
import re
import textwrap
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitkit.bundle.weights import Shapes, get_shapes, read_header
from vitkit.support.errors import format_count, format_few, prefix_errors

# Keys under which training programs save the weights among other things.
NESTS = ("model", "state_dict", "teacher", "module")
# Parts of names that torch.compile, FSDP and activation checkpointing insert anywhere.
INSERTED = r"_orig_mod\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\."
PARALLEL = "module."  # which DataParallel puts in front of all names
AVERAGED = {"model_ema", "state_dict_ema", "ema"}
INDEX = ".index.json"
HF_STEMS = ("model", "pytorch_model")  # as transformers and timm call them
SAFETENSORS, PYTORCH, NUMPY, JSON = "safetensors", "PyTorch", "NumPy's arrays", "JSON"
BEGINNINGS = {
    rb"\Z": "an empty one",
    rb".{5}\0\0\0\{": SAFETENSORS,  # the length of its header, and the header
    rb"PK.*\.npy": NUMPY,
    rb"PK.*(data\.pkl|\.format_version|byteorder)": PYTORCH,
    rb"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46": PYTORCH,  # with which torch.save began before it wrote zips
    rb"\x80": "a pickle that torch.save did not write",
    rb"\s*[\[{]": JSON,
    rb"\s*<": "a web page",
    rb"version https://git-lfs": "a pointer of Git LFS to it",
}
HALF, DOUBLE = (torch.float16, torch.bfloat16), (torch.float64,)
KNOWN = (torch.float32, *HALF, *DOUBLE)


class WeightFile(NamedTuple):
    """The content of a file of weights: tensors by name, arguments of the training that wrote it, and notes."""

    state: dict[str, Tensor]
    arguments: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()


def read_weights(path: Path) -> WeightFile:
    """Read the tensors of a file of safetensors, PyTorch or NumPy, or of an index of shards, as float32.

    The content decides, whatever the suffix; a checkpoint of Lightning is a file of PyTorch.

    Raises: ValueError, one line that starts with the path, for a file that would run code, is broken, or holds no
    weights.
    """
    with prefix_errors(path):
        weights = read_file(path)
        state = {name: tensor for name, tensor in weights.state.items() if not is_counter(name, tensor)}
        return convert_to_float32(weights._replace(state=state))


def is_counter(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is a whole number, such as the steps of a training, the list of positions, or a mask."""
    mask = name.endswith(".attn.bias")  # GPT-2's, causal
    return name.rpartition(".")[2] == "position_ids" or (tensor.dtype not in KNOWN and (mask or not tensor.ndim))


def read_shapes(path: Path) -> Shapes:
    """Return the shapes of the tensors of a file, by its header alone if it has one."""
    with prefix_errors(path):
        if detect_kind(path) == SAFETENSORS:
            with report_damage(SAFETENSORS):
                return read_header(path)
    return get_shapes(read_weights(path).state)


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
            tensors = format_count(len(names), "tensors")
            notes.append(f"kept in float32: {tensors} of {precision} precision; the numbers are {numbers}")
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
    return read_shards(path) if detect_kind(path) == JSON else read_tensors(path)


def read_tensors(path: Path) -> WeightFile:
    if (kind := detect_kind(path)) == SAFETENSORS:
        with report_damage(kind):
            return strip_inserted(load_file(path))
    if kind == NUMPY:
        return WeightFile({name: torch.from_numpy(array) for name, array in read_arrays(path).items()})
    if kind == PYTORCH:
        return find_tensors(*load_pickle(path))
    raise ValueError(f"a file of weights must be of {SAFETENSORS}, {PYTORCH} or {NUMPY}, got {kind}; fetch it again")


def read_shards(index: Path) -> WeightFile:
    """Read the shards of an index. Raises: ValueError unless they lie beside it and hold the tensors that it lists."""
    with report_damage("an index of shards (weight_map)"):
        names: dict[str, str] = dict(json.loads(index.read_text("utf-8"))["weight_map"])
    if outside := sorted(name for name in {*names.values()} if Path(name).name != name):
        raise ValueError(f"shards must lie beside it, got {outside[0]}")
    shards: list[WeightFile] = []
    for name in sorted({*names.values()}):
        with prefix_errors(index.with_name(name)) as shard_path:
            shards.append(read_tensors(shard_path))
    state = {name: tensor for weights in shards for name, tensor in weights.state.items()}
    if differing := sorted(names.keys() ^ state.keys()):
        raise ValueError(f"its shards must hold the tensors that it lists, got other than {', '.join(differing[:3])}")
    return WeightFile(state)


class EqualToDict(type):
    """A class that equals dict: torch sets the items of a dict alone."""

    def __eq__(cls, other: object) -> bool:
        return other is dict or other is cls

    __hash__ = type.__hash__


class Unread(list[Any], metaclass=EqualToDict):
    """An object in a pickle whose class is no plain data: nothing of it is read.

    It takes the place of dicts and lists of other classes, too. It is a list, as torch appends to nothing else.
    """

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  # it may be a key

    def __init__(self, *args: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass


def load_pickle(path: Path) -> tuple[object, list[str]]:
    """Load tensors and plain data, and return the names of the classes and functions that are replaced by `Unread`.

    Lightning's hyperparameters may be of any class. The only one that is built is argparse.Namespace, which MAE's files
    hold: it runs nothing.
    """
    zipped, names = zipfile.is_zipfile(path), []
    with report_damage(PYTORCH), torch.serialization.safe_globals([argparse.Namespace]):
        if zipped:
            names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        with (
            torch.serialization.safe_globals([(Unread, name) for name in names]),
            warnings.catch_warnings(action="ignore", category=UserWarning),  # about pickles that it refuses
            path.open("rb") as file,
        ):
            # torch.load reads what ends in .safetensors as such, and maps no open file into memory.
            mapped = zipped and path.suffix != ".safetensors"
            content = torch.load(path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)
    if isinstance(content, Unread):
        raise RefusedError(f"it asks for {format_few(names)}; save the state_dict() of the model")
    return content, names


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with report_damage(NUMPY), path.open("rb") as file, np.load(file, allow_pickle=False) as file_arrays:
        return {name: file_arrays[name] for name in file_arrays.files}


class RefusedError(ValueError):
    """An error for a file that would run code."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused, nothing in it was run: a file of weights must hold tensors only, {reason}")


@contextmanager
def report_damage(kind: str) -> Iterator[None]:
    """Replace a library's errors about a broken file of a kind by a ValueError without its advice."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # of unpickling, zip, safetensors, numpy, down to KeyError
        if match := re.search(r"GLOBAL (\S+)", str(error)):
            raise RefusedError(f"it asks for {match[1]}") from None
        if "allow_pickle" in str(error):
            raise RefusedError("it holds objects") from None
        message = re.split(r"\. |\n", str(error).rpartition("WeightsUnpickler error: ")[2].strip())[0]
        if isinstance(error, UnpicklingError):
            raise RefusedError(f"{textwrap.shorten(message, 160)}; save the state_dict() of the model") from None
        reason = textwrap.shorten(f"one that is damaged or cut short ({message})", 160)
        raise ValueError(f"must be a whole file of {kind}, got {reason}; fetch it again") from None


def detect_kind(path: Path) -> str:
    """Return the kind of a file by its first bytes."""
    with path.open("rb") as file:
        start = file.read(512)
    return next((kind for begin, kind in BEGINNINGS.items() if re.match(begin, start, re.DOTALL)), "other bytes")


def find_tensors(content: object, unread: Sequence[str] = ()) -> WeightFile:
    """Return the tensors in the content that a training program saved. Raises: ValueError if there are none.

    Args: unread: names of classes of which the content holds objects that were not read.
    """
    notes = [f"objects of {format_few(unread)} are not read"] if unread else []
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
        reason = "; ".join([text, *notes])
        raise ValueError(f"a file of weights must hold tensors by name, maybe below {', '.join(NESTS)}, got {reason}")
    weights = strip_inserted(content)
    return WeightFile(weights.state, arguments, (*notes, *weights.notes))


def holds_tensors(content: Mapping[Any, object]) -> bool:
    return all(isinstance(value, Tensor) for value in content.values())


def strip_inserted(state: Mapping[str, Tensor]) -> WeightFile:
    """Remove what torch's own wrappers insert into names, with a note of it."""
    parallel = all(name.startswith(PARALLEL) for name in state)
    pattern = f"^{re.escape(PARALLEL)}|{INSERTED}" if parallel else INSERTED
    targets = {name: re.sub(pattern, "", name) for name in state}
    if len({*targets.values()}) < len(targets):
        return WeightFile(dict(state))
    parts = sorted({part for name in state for part in re.findall(pattern, name)})
    notes = tuple(f"{part} is taken off the names of tensors" for part in parts)
    return WeightFile({targets[name]: tensor for name, tensor in state.items()}, {}, notes)
