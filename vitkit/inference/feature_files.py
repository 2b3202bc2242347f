"""Files of features, written batch by batch: Parquet, npz or safetensors. None needs all rows in memory.

Columns: index, name, label if there are any, and one for each array. N rows, K classes.
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

from vitkit.support.errors import escape_surrogates
from vitkit.support.extras import require_package
from vitkit.support.files import replace_file, require_new


class FeatureRows(NamedTuple):
    """A batch of features. `labels` are (N,) class indices, (N, K) for sets of classes, or None."""

    features: Mapping[str, np.ndarray]
    names: tuple[str, ...]
    indices: np.ndarray
    labels: np.ndarray | None
    skipped: tuple[str, ...]


class FeatureFile(NamedTuple):
    """The shape of a row of each array in a file, the number of rows, and a line for each unreadable image."""

    shapes: dict[str, tuple[int, ...]]
    rows: int
    skipped: tuple[str, ...]


def write_features(
    path: Path, batches: Iterable[FeatureRows], classes: Sequence[str], *, overwrite: bool = False
) -> FeatureFile:
    """Write all rows to a file, whole or not at all.

    Raises: ValueError if there is no row, or the file exists and is not to be overwritten.
    """
    write = FORMATS[check_feature_file(path, overwrite).suffix]
    shapes: dict[str, tuple[int, ...]] = {}
    skipped: list[str] = []
    count = 0

    def count_rows() -> Iterable[FeatureRows]:
        nonlocal count
        for batch in batches:
            skipped.extend(batch.skipped)
            if batch.names:
                count += len(batch.names)
                shapes.update({name: array.shape[1:] for name, array in batch.features.items()})
                yield batch
        if not count:
            raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(skipped[:1])}")

    with replace_file(path) as temporary:
        write(temporary, count_rows(), classes)
    return FeatureFile(shapes, count, tuple(skipped))


def check_feature_file(path: Path, overwrite: bool) -> Path:
    if path.suffix not in FORMATS:
        raise ValueError(f"out must end in {', '.join(FORMATS)}, got out={path}")
    require_new(path, overwrite)
    if path.suffix == ".parquet":
        require_package("pyarrow", "a Parquet file", extra="data")
    return path


def write_parquet(path: Path, batches: Iterable[FeatureRows], classes: Sequence[str]) -> None:
    """Write a row group for each batch. Arrays are fixed-size lists; the metadata hold their shapes and the classes."""
    import pyarrow as pa
    from pyarrow import parquet

    with ExitStack() as stack:
        writer = None
        for batch in batches:
            arrays: dict[str, Any] = {
                "index": pa.array(batch.indices),
                "name": pa.array([*map(escape_surrogates, batch.names)]),
            }
            if batch.labels is not None and batch.labels.ndim == 1:
                arrays["label"] = pa.array(batch.labels)
            elif batch.labels is not None:
                sets = [row.nonzero()[0].tolist() for row in batch.labels]
                arrays["label"] = pa.array(sets, pa.list_(pa.int64()))
            for name, array in batch.features.items():
                flat = pa.array(array.reshape(-1))
                arrays[name] = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[1:])))
            table = pa.table(arrays)
            if writer is None:
                shapes = {name: array.shape[1:] for name, array in batch.features.items()}
                schema = table.schema.with_metadata({"classes": json.dumps(classes), "shapes": json.dumps(shapes)})
                writer = stack.enter_context(parquet.ParquetWriter(path, schema))
            writer.write_table(table)


def write_npz(path: Path, batches: Iterable[FeatureRows], classes: Sequence[str]) -> None:
    """Write a file for `numpy.load`, without pickled objects."""
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder, path.open("wb") as file:
        arrays, names = spool_rows(Path(folder), batches)
        np.savez(file, allow_pickle=False, **arrays, name=np.array(names), classes=np.array(classes, dtype=str))


def write_safetensors(path: Path, batches: Iterable[FeatureRows], classes: Sequence[str]) -> None:
    """Write a safetensors file with names and classes as JSON lists in the metadata."""
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        arrays, names = spool_rows(Path(folder), batches)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        save_file(tensors, path, metadata={"name": json.dumps(names), "classes": json.dumps(classes)})


def spool_rows(folder: Path, batches: Iterable[FeatureRows]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Append the batches to one file per array, and return the arrays, memory-mapped, and the names of their rows."""
    kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    names: list[str] = []
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for batch in batches:
            names += batch.names
            labels = {} if batch.labels is None else {"label": batch.labels}
            arrays = {"index": batch.indices, **labels, **batch.features}
            for name, array in arrays.items():
                if name not in files:
                    files[name] = stack.enter_context((folder / name).open("wb"))
                    kinds[name] = array.dtype, array.shape[1:]
                files[name].write(np.ascontiguousarray(array).data)
    spooled: dict[str, np.ndarray] = {}
    for name, (dtype, shape) in kinds.items():
        spooled[name] = np.memmap(folder / name, dtype, "r+", shape=(len(names), *shape))
    return spooled, names


FORMATS = {".npz": write_npz, ".parquet": write_parquet, ".safetensors": write_safetensors}
