"""The record of samples in a model folder, which is read when a model is evaluated or trained on, not when it opens.

It may come from a stranger: it is bounded by the size of the file, and nothing in it is executed. It stays on the
machine: a pushed or exported model has none.
"""

from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from vitkit.data.sample_record import SampleRecord
from vitkit.support.errors import prefix_errors
from vitkit.support.files import replace_file

RECORD = "samples.safetensors"
NUMBERS = ("folds", "fold")


def read_record(folder: str | Path) -> SampleRecord | None:
    """Return the record of a model folder; None without one. Raises: ValueError, one line, for a faulty one."""
    path = Path(folder) / RECORD
    if not (str(folder) and path.is_file()):
        return None
    with prefix_errors(path), safe_open(path, framework="np") as file:
        columns = [file.get_tensor(name) for name in SampleRecord._fields[:2]]
        if any(column.dtype != np.uint64 or column.shape != (len(columns[0]),) for column in columns):
            raise ValueError(f"must hold two columns of uint64, got {[(c.dtype, c.shape) for c in columns]}")
        folds, fold = (int((file.metadata() or {}).get(name, 0)) for name in NUMBERS)
        return SampleRecord(columns[0], columns[1], folds, fold)


def write_record(folder: Path, record: SampleRecord) -> None:
    """Write the record of a model folder, replacing an earlier one as a whole."""
    columns = {name: np.ascontiguousarray(column) for name, column in zip(record._fields, record[:2], strict=False)}
    with replace_file(folder / RECORD) as temporary:
        save_file(columns, temporary, {name: str(getattr(record, name)) for name in NUMBERS})
