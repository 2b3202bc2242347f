"""Rows of arrays that come batch by batch, as one file: Parquet, npz or safetensors; none needs them all in memory.

Columns: index, name, label where there are any, and one for each array. N rows, K classes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

from vitkit.support.extras import require_package
from vitkit.support.files import replace_file, require_new_file


class FeatureRows(NamedTuple):
    """`labels` are (N,) numbers, (N, K) where a row has a set of them, None where there are none."""

    features: Mapping[str, np.ndarray]
    names: tuple[str, ...]
    indices: np.ndarray
    labels: np.ndarray | None
    skipped: tuple[str, ...]


class Collected(NamedTuple):
    """The shape of a row of each array, how many rows there are, and a line for each that is missing."""

    shapes: dict[str, tuple[int, ...]]
    rows: int
    skipped: tuple[str, ...]


def collect(path: Path, rows: Iterable[FeatureRows], classes: Sequence[str]) -> Collected:
    """Write all rows to a new file, whole or not at all.

    Raises: ValueError if there is no row, or if the file cannot be new.
    """
    write = FORMATS[check_feature_file(path).suffix]
    shapes: dict[str, tuple[int, ...]] = {}
    skipped: list[str] = []
    count = 0

    def counted() -> Iterable[FeatureRows]:
        nonlocal count
        for part in rows:
            skipped.extend(part.skipped)
            if part.names:
                count += len(part.names)
                shapes.update({name: array.shape[1:] for name, array in part.features.items()})
                yield part
        if not count:
            raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(skipped[:1])}")

    with replace_file(path) as beside:
        write(beside, counted(), classes)
    return Collected(shapes, count, tuple(skipped))


def check_feature_file(path: Path) -> Path:
    if path.suffix not in FORMATS:
        raise ValueError(f"out must end in {', '.join(FORMATS)}, got out={path}")
    require_new_file(path)
    if path.suffix == ".parquet":
        require_package("pyarrow", "a Parquet file", extra="data")
    return path


def parquet(path: Path, rows: Iterable[FeatureRows], classes: Sequence[str]) -> None:
    """A row group for each batch; an array is a list of fixed size, and the metadata hold its shape and the classes."""
    import pyarrow as pa
    from pyarrow import parquet as files

    with ExitStack() as stack:
        writer = None
        for part in rows:
            arrays: dict[str, Any] = {"index": pa.array(part.indices), "name": pa.array(part.names)}
            if part.labels is not None and part.labels.ndim == 1:
                arrays["label"] = pa.array(part.labels)
            elif part.labels is not None:
                sets = [row.nonzero()[0].tolist() for row in part.labels]
                arrays["label"] = pa.array(sets, pa.list_(pa.int64()))
            for name, array in part.features.items():
                flat = pa.array(array.reshape(-1))
                arrays[name] = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[1:])))
            table = pa.table(arrays)
            if writer is None:
                shapes = {name: array.shape[1:] for name, array in part.features.items()}
                schema = table.schema.with_metadata({"classes": json.dumps(classes), "shapes": json.dumps(shapes)})
                writer = stack.enter_context(files.ParquetWriter(path, schema))
            writer.write_table(table)


def npz(path: Path, rows: Iterable[FeatureRows], classes: Sequence[str]) -> None:
    """For `numpy.load`, without pickled objects."""
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder, path.open("wb") as file:
        arrays, names = spooled(Path(folder), rows)
        np.savez(file, allow_pickle=False, **arrays, name=np.array(names), classes=np.array(classes, dtype=str))


def safetensors(path: Path, rows: Iterable[FeatureRows], classes: Sequence[str]) -> None:
    """Names and classes are JSON lists in the metadata."""
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        arrays, names = spooled(Path(folder), rows)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        save_file(tensors, path, metadata={"name": json.dumps(names), "classes": json.dumps(classes)})


def spooled(folder: Path, rows: Iterable[FeatureRows]) -> tuple[dict[str, np.ndarray], list[str]]:
    """All rows of each array, mapped from files to which the batches were appended; and the names."""
    kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    names: list[str] = []
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for part in rows:
            names += part.names
            arrays = {"index": part.indices, **({} if part.labels is None else {"label": part.labels}), **part.features}
            for name, array in arrays.items():
                if name not in files:
                    files[name] = stack.enter_context((folder / name).open("wb"))
                    kinds[name] = array.dtype, array.shape[1:]
                files[name].write(np.ascontiguousarray(array).data)
    found: dict[str, np.ndarray] = {}
    for name, (dtype, shape) in kinds.items():
        found[name] = np.memmap(folder / name, dtype, "r+", shape=(len(names), *shape))
    return found, names


FORMATS = {".npz": npz, ".parquet": parquet, ".safetensors": safetensors}
