import argparse
import io
import json
import os
import pickle
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from vitkit.convert.weight_files import read_weights

STATE = {"a.weight": torch.arange(6.0).view(2, 3), "b.bias": torch.ones(2)}


class Payload:
    """An object whose unpickling runs a command that creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def write_pickle(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("end", ["safetensors", "pth", "pt", "bin", "npz"])
def test_every_kind_of_file_gives_its_tensors(end: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights.{end}"
    match end:
        case "safetensors":
            save_file(STATE, path)
        case "npz":
            np.savez(path, **{name: tensor.numpy() for name, tensor in STATE.items()})
        case _:
            torch.save(STATE, path)
    assert_close(read_weights(path).state, STATE, rtol=0, atol=0)


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
        ({"state_dict": {f"module.{name}": tensor for name, tensor in STATE.items()}}, []),
        (
            {"teacher": {**{f"backbone.{name}": tensor for name, tensor in STATE.items()}, "head.x": torch.ones(1)}},
            ["1 tensors beside backbone.* are left out, such as head.x"],
        ),
        ({"model": STATE, "model_ema": STATE}, ["model_ema (averaged weights) is left out; model is read"]),
    ],
)
def test_weights_are_found_below_known_keys_and_prefixes(content: Any, notes: list[str], tmp_path: Path) -> None:
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


@pytest.mark.parametrize("end", ["safetensors", "pth", "npz"])
def test_broken_file_raises_one_line_with_its_path(end: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(STATE, buffer)
    path = tmp_path / f"weights.{end}"
    path.write_bytes(buffer.getvalue()[:200])
    with pytest.raises(ValueError, match=f"^{path}: ") as raised:
        read_weights(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("dtype", "note"),
    [
        (torch.float32, []),
        (torch.float16, ["1 tensors of half precision are kept in float32; the numbers are the same"]),
        (torch.float64, ["1 tensors of double precision are kept in float32; the numbers are rounded"]),
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
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(10**6, np.float32))
    with pytest.raises(ValueError, match=r"x.npz: .*must hold its numbers, got 4,000,128 bytes packed to hardly any"):
        read_weights(tmp_path / "x.npz")
    np.savez_compressed(tmp_path / "x.npz", a=np.random.default_rng(0).normal(size=100))
    assert read_weights(tmp_path / "x.npz").state["a"].shape == (100,)


def test_prefixes_are_stripped_in_safetensors_too(tmp_path: Path) -> None:
    wrapped = {f"module.{name}": tensor for name, tensor in STATE.items()}
    save_file({**wrapped, "step": torch.ones(1)}, tmp_path / "x.safetensors")
    weights = read_weights(tmp_path / "x.safetensors")
    assert_close(weights.state, STATE, rtol=0, atol=0)
    assert weights.notes == ("1 tensors beside module.* are left out, such as step",)


def write_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(3))


@pytest.mark.parametrize("end", ["safetensors", "pth", "npz"])
@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda path: save_file(STATE, path), "safetensors"),
        (lambda path: torch.save(STATE, path), "PyTorch"),
        (lambda path: torch.save(STATE, path, _use_new_zipfile_serialization=False), "PyTorch"),
        (write_npz, "NumPy's arrays"),
        (lambda path: path.touch(), "an empty one"),
        (lambda path: path.write_bytes(pickle.dumps(STATE)), "a pickle that torch.save did not write"),
        (lambda path: path.write_text("<!DOCTYPE html>"), "a web page"),
        (lambda path: path.write_bytes(b"\0"), "other bytes"),
    ],
)
def test_file_of_another_kind_raises_with_its_kind_and_no_unsafe_advice(
    end: str, write: Any, kind: str, tmp_path: Path
) -> None:
    write(path := tmp_path / f"weights.{end}")
    wanted = {"safetensors": "safetensors", "pth": "PyTorch", "npz": "NumPy's arrays"}[end]
    if kind == wanted:
        assert read_weights(path).state
        return
    with pytest.raises(ValueError) as raised:
        read_weights(path)
    rule = f"must be a whole file of {wanted}, got {kind}"
    assert str(raised.value) == f"{path}: {rule}; fetch it again, or check its suffix"


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
