import argparse
import io
import json
import os
import pickle
import shutil
from collections import OrderedDict, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from vitkit.convert.weight_files import read_shapes, read_weights

STATE = {"a.weight": torch.arange(6.0).view(2, 3), "b.bias": torch.ones(2)}


class Copy:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return shutil.copyfile, (__file__, self.path)


class Payload:
    """An object whose unpickling runs a command that creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def write_pickle(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("end", ["safetensors", "npz", "pth", "pth.tar", "ckpt", "model", ""])
@pytest.mark.parametrize("kind", ["safetensors", "PyTorch", "NumPy"])
def test_content_decides_and_no_suffix(kind: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{'.' if end else ''}{end}"
    match kind:
        case "safetensors":
            save_file(STATE, path)
        case "NumPy":
            with path.open("wb") as file:
                np.savez(file, allow_pickle=False, **{name: tensor.numpy() for name, tensor in STATE.items()})
        case _:
            torch.save(STATE, path)
    assert_close(read_weights(path).state, STATE, rtol=0, atol=0)
    assert read_shapes(path) == {"a.weight": (2, 3), "b.bias": (2,)}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("nest", [lambda bad: bad, lambda bad: {"model": STATE, "args": bad}])
def test_pickle_that_would_run_code_raises_and_runs_nothing(zipped: bool, nest: Any, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    path = tmp_path / "weights.pth"
    torch.save(nest(Payload(touched)), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(
        ValueError, match=r"weights.pth: refused, nothing in it was run.*asks for posix.system"
    ) as raised:
        read_weights(path)
    assert "\n" not in str(raised.value)
    assert not touched.exists()
    torch.load(path, weights_only=False)  # the payload is real
    assert touched.exists()


def test_compressed_arrays_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(10**5, np.float32))
    assert read_weights(tmp_path / "x.npz").state["a"].shape == (10**5,)


def test_plain_pickle_and_objects_in_npz_raise_too(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    (tmp_path / "weights.bin").write_bytes(pickle.dumps({"a": Payload(touched)}))
    np.savez(tmp_path / "weights.npz", a=np.array([Payload(touched)], dtype=object))
    for name in ("weights.bin", "weights.npz"):
        with pytest.raises(ValueError, match=rf"{name}: "):
            read_weights(tmp_path / name)
    assert not touched.exists()
    with np.load(tmp_path / "weights.npz", allow_pickle=True) as arrays:
        assert arrays["a"] is not None
    assert touched.exists()


def test_training_arguments_are_returned(tmp_path: Path) -> None:
    """MAE's training files hold an argparse.Namespace, which plain weights_only refuses."""
    content = {"model": STATE, "optimizer": {"state": {}}, "epoch": 3, "args": argparse.Namespace(norm_pix_loss=True)}
    weights = read_weights(write_pickle(tmp_path / "checkpoint-3.pth", content))
    assert_close(weights.state, STATE, rtol=0, atol=0)
    assert weights.arguments == {"norm_pix_loss": True}
    assert weights.notes == ()


@pytest.mark.parametrize(
    ("content", "notes"),
    [
        ({"state_dict": OrderedDict(STATE), "epoch": 1}, []),
        (
            {"state_dict": {f"module.{name}": tensor for name, tensor in STATE.items()}},
            ["module. is taken off the names of tensors"],
        ),
        (
            {"state_dict": {name.replace(".", "._orig_mod."): tensor for name, tensor in STATE.items()}},
            ["_orig_mod. is taken off the names of tensors"],
        ),
        ({"state_dict": {**STATE, "ema.num_updates": torch.tensor(3)}}, []),
        ({"model": STATE, "model_ema": STATE}, ["model_ema (averaged weights) is left out; model is read"]),
    ],
)
def test_weights_are_read_below_known_keys_without_what_torch_inserts(
    content: Any, notes: list[str], tmp_path: Path
) -> None:
    weights = read_weights(write_pickle(tmp_path / "weights.pth", content))
    assert_close(weights.state, STATE, rtol=0, atol=0)
    assert [*weights.notes] == notes


@pytest.mark.parametrize("content", [{"epoch": 1, "lr": 0.1}, [torch.ones(1)], {}, {"model": {"a": 1}}])
def test_file_without_named_tensors_raises(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weights.pth: a file of weights must hold tensors by name"):
        read_weights(write_pickle(tmp_path / "weights.pth", content))


def test_shards_are_joined_and_must_be_complete_and_beside_their_index(tmp_path: Path) -> None:
    for number, name in enumerate(STATE, 1):
        save_file({name: STATE[name]}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"

    def listing(**names: str) -> Path:
        index.write_text(json.dumps({"weight_map": names}))
        return index

    files = {name: f"model-0000{number}-of-00002.safetensors" for number, name in enumerate(STATE, 1)}
    assert_close(read_weights(listing(**files)).state, STATE, rtol=0, atol=0)
    with pytest.raises(ValueError, match="its shards must hold the tensors that it lists, got other than b.bias"):
        read_weights(listing(**{"a.weight": files["a.weight"], "b.bias": files["a.weight"]}))
    with pytest.raises(ValueError, match=r"shards must lie beside it, got \.\./secret.safetensors"):
        read_weights(listing(**{"a.weight": "../secret.safetensors"}))


def test_broken_file_raises_one_line_with_its_path(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(STATE, buffer)
    path = tmp_path / "weights.pth"
    path.write_bytes(buffer.getvalue()[:200])
    with pytest.raises(ValueError, match=f"^{path}: ") as raised:
        read_weights(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("dtype", "note"),
    [
        (torch.float32, []),
        (torch.float16, ["kept in float32: 1 tensor of half precision; the numbers are the same"]),
        (torch.float64, ["kept in float32: 1 tensor of double precision; the numbers are rounded"]),
    ],
)
def test_all_floats_become_float32(dtype: torch.dtype, note: list[str], tmp_path: Path) -> None:
    save_file({**STATE, "a.weight": STATE["a.weight"].to(dtype)}, tmp_path / "x.safetensors")
    weights = read_weights(tmp_path / "x.safetensors")
    assert_close(weights.state, STATE, rtol=0, atol=0)
    assert [*weights.notes] == note


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn, torch.complex64])
def test_tensors_without_floats_raise_unless_beside_an_image_tower(dtype: torch.dtype, tmp_path: Path) -> None:
    other = STATE["a.weight"].to(dtype)
    with pytest.raises(ValueError, match=f"must be of float32, .*, got {str(dtype)[6:]} for a.weight") as raised:
        read_weights(write_pickle(tmp_path / "x.pth", {**STATE, "a.weight": other}))
    assert "b.bias" not in str(raised.value)
    tower = {"visual.b": STATE["b.bias"], "text.positions": other}
    assert read_weights(write_pickle(tmp_path / "x.pth", tower)).state["text.positions"].dtype == dtype


def test_tensors_larger_than_their_file_raise(tmp_path: Path) -> None:
    vast = torch.zeros(1, dtype=torch.float16).expand(10**9, 10**6)
    with pytest.raises(ValueError, match=r"must hold its numbers, got 1,000,000,000,000,000 in 2 bytes for b"):
        read_weights(write_pickle(tmp_path / "x.pth", {**STATE, "b": vast}))
    with pytest.raises(ValueError, match="must hold plain tensors, got torch.sparse_coo on cpu for b"):
        sparse = torch.sparse_coo_tensor(torch.zeros(1, 0), [], (10**9,), check_invariants=True)
        read_weights(write_pickle(tmp_path / "x.pth", {"b": sparse}))


def test_objects_among_hyperparameters_are_not_read_and_nothing_runs(tmp_path: Path) -> None:
    """Lightning's checkpoints hold what `save_hyperparameters` saved, of any class."""
    hyper_parameters = {"act": torch.nn.functional.gelu, "net": torch.nn.Linear(1, 1), "ran": Payload(tmp_path / "ran")}
    content = {"state_dict": STATE, "hyper_parameters": {**hyper_parameters, "path": tmp_path}, "optimizer_states": []}
    with pytest.raises(ValueError, match=r"refused, nothing in it was run.*asks for posix.system"):
        read_weights(write_pickle(tmp_path / "x.ckpt", content))
    hyper_parameters["ran"] = Copy(tmp_path / "ran")
    weights = read_weights(write_pickle(tmp_path / "x.ckpt", content | {"hyper_parameters": hyper_parameters}))
    assert_close(weights.state, STATE, rtol=0, atol=0)
    assert "shutil.copyfile" in weights.notes[0]
    assert weights.notes[0].endswith("are not read")
    assert not (tmp_path / "ran").exists()


class Options(dict[str, Any]):
    """A dict, as Lightning's AttributeDict is."""


class Sizes(list[int]):
    pass


def test_dicts_and_lists_of_other_classes_among_hyperparameters_are_not_read(tmp_path: Path) -> None:
    counts = defaultdict(list, {"sizes": [1]})
    hyper_parameters = Options(lr=0.1, sizes=Sizes([1, 2]), counts=counts, keyed={Path("a"): 1})
    weights = read_weights(
        write_pickle(tmp_path / "x.ckpt", {"state_dict": STATE, "hyper_parameters": hyper_parameters})
    )
    assert_close(weights.state, STATE, rtol=0, atol=0)
    assert "collections.defaultdict" in weights.notes[0]


def test_whole_pickled_model_raises_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"asks for .*Linear.*; save the state_dict\(\) of the model"):
        read_weights(write_pickle(tmp_path / "x.pth", torch.nn.Linear(1, 1)))
    with pytest.raises(ValueError, match=r"got a mapping with model; objects of .*Linear.* are not read"):
        read_weights(write_pickle(tmp_path / "x.pth", {"model": torch.nn.Linear(1, 1)}))


def write_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(3))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "an empty one"),
        (pickle.dumps(STATE), "a pickle that torch.save did not write"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"\0", "other bytes"),
    ],
)
def test_file_of_another_kind_raises_with_its_kind(content: bytes, kind: str, tmp_path: Path) -> None:
    (path := tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(ValueError) as raised:
        read_weights(path)
    rule = "a file of weights must be of safetensors, PyTorch or NumPy's arrays"
    assert str(raised.value) == f"{path}: {rule}, got {kind}; fetch it again"


@pytest.mark.parametrize("end", ["safetensors", "pth", "npz"])
def test_truncated_file_raises(end: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights.{end}"
    write: dict[str, Any] = {
        "safetensors": partial(save_file, STATE),
        "pth": partial(torch.save, STATE),
        "npz": write_npz,
    }
    write[end](path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"must be a whole file of .*, got one that is damaged or cut short \("):
        read_weights(path)
