import json

import numpy as np
import pytest
from PIL import Image

from vitkit.cli import main


@pytest.mark.parametrize("workers", [0, 2])
def test_bench_compares_the_loading_of_a_folder(workers, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.fromarray(rng.integers(0, 256, (60, 80, 3), np.uint8)).save(tmp_path / name / f"{number}.jpg")
    arguments = ["--size", "16", "--workers", str(workers), "--pairs", "2", "--json", str(tmp_path / "bench.json")]
    assert main(["bench", "--loading", str(tmp_path), "--pictures", "8", *arguments]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("note: ")]
    result = json.loads((tmp_path / "bench.json").read_text())
    assert (result["workers"], result["pictures"], result["reduce"]) == (workers, 8, 2)
    assert len(result["rows"]) == 7
    for row, line in zip(result["rows"], lines[-7:], strict=True):
        low, high = row["ratio"]["quartiles"]
        assert low <= row["ratio"]["median"] <= high and row["rate"] > 0
        assert line.startswith(f"{row['transform']:12} {row['loader']:14}")
    assert [row["ratio"]["pairs"] for row in result["rows"] if row["loader"] == "torchvision"] == [[1, 1]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "-1"], "workers must be at least 0"),
        (["--pictures", "0"], "pictures must be at least 1"),
        (["--size", "0"], "size must be at least 1"),
        (["--reduce", "0.5"], "reduce must be at least 1"),
        ([], "loading must be a folder of class folders with pictures, got loading="),
    ],
)
def test_invalid_option_is_a_one_line_error_before_the_output(arguments, message, tmp_path, capsys):
    assert main(["bench", "--loading", str(tmp_path), *arguments]) == 1
    out, error = capsys.readouterr()
    assert message in error and error.count("\n") == 1 and not out
