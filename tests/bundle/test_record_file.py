from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from vitkit.bundle.record_file import RECORD, read_record, write_record
from vitkit.data.sample_record import SampleRecord


def test_record_of_a_sample_takes_16_bytes(tmp_path: Path) -> None:
    keys, digests = np.random.default_rng(0).integers(0, 2**64, (2, 1000), np.uint64)
    write_record(tmp_path, SampleRecord(keys, digests, 5, 1))
    assert (tmp_path / RECORD).stat().st_size <= 16 * 1000 + 256  # of the header
    record = read_record(tmp_path)
    assert record is not None and record[2:] == (5, 1)
    assert np.array_equal(record.keys, keys) and np.array_equal(record.digests, digests)
    assert read_record(tmp_path / "other") is None and read_record("") is None


@pytest.mark.parametrize(
    "columns",
    [
        {"keys": np.zeros(3, np.uint64)},
        {"keys": np.zeros(3, np.uint64), "digests": np.zeros(2, np.uint64)},
        {"keys": np.zeros((3, 1), np.uint64), "digests": np.zeros((3, 1), np.uint64)},
        {"keys": np.zeros(3), "digests": np.zeros(3)},
    ],
)
def test_faulty_record_is_an_error_in_one_line(columns: dict[str, np.ndarray], tmp_path: Path) -> None:
    save_file(columns, tmp_path / RECORD)
    with pytest.raises(ValueError, match=RECORD) as error:
        read_record(tmp_path)
    assert "\n" not in str(error.value)
    (tmp_path / RECORD).write_bytes(b"\x80\x04N.")
    with pytest.raises(ValueError, match=RECORD):
        read_record(tmp_path)
