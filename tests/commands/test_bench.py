import json

import pytest
import torch

from vitkit.bench import vit_steps
from vitkit.cli import main
from vitkit.commands import bench

TINY = ["bench", "--models", "ti/16@32", "--batch", "1", "--pairs", "1", "--device", "cpu"]


@pytest.mark.parametrize("name", ["ti/4", "xl/4@32", "ti/5@32", "ti/0@32"])
def test_invalid_model_name_is_a_one_line_error(capsys, name):
    assert main(["bench", "--models", "ti/4@32", name]) == 1
    error = capsys.readouterr().err
    assert f"got model={name}" in error and error.count("\n") == 1


@pytest.mark.parametrize("option", ["--batch", "--pairs", "--threads"])
def test_numbers_below_one_are_refused(capsys, option):
    assert main(["bench", option, "0"]) == 1
    assert "must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", [".", "missing/bench.json"])
def test_json_that_cannot_be_written_is_refused_before_timing(capsys, tmp_path, name):
    assert main([*TINY, "--dtype", "float32", "--threads", "1", "--json", str(tmp_path / name)]) == 1
    out, error = capsys.readouterr()
    assert "json must be a file in a folder that exists" in error and error.count("\n") == 1 and not out


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "has_fast_bfloat16", lambda device: True)


def test_bench_prints_a_table_and_writes_json(tmp_path, capfd):
    path = tmp_path / "bench.json"
    assert main([*TINY, "--pairs", "2", "--dtype", "float32", "--threads", "1", "--json", str(path)]) == 0
    out, err = capfd.readouterr()
    result = json.loads(path.read_text())
    assert [row["step"] for row in result["rows"]] == ["forward", "training"]
    assert all(f"ti/16@32   float32          1 {row['step']}" in out for row in result["rows"])
    for row in result["rows"]:
        low, high = row["speedup"]["quartiles"]
        assert low <= row["speedup"]["median"] <= high and len(row["speedup"]["pairs"]) == 2
        assert min(row["seconds"]) > 0 < min(row["share"]) and row["rate"] > 0
    forward_bytes, training_bytes = (row["memory"][0] for row in result["rows"])
    assert training_bytes > 4 * 4 * 5_500_000 > 2 * forward_bytes  # weights, gradients, two moments; weights
    assert result["torch"] == torch.__version__.partition("+")[0]
    assert err.count("timing") == 2 and "profiler" not in err


@pytest.mark.usefixtures("fast")
def test_every_dtype_is_timed_where_bfloat16_is_fast(tmp_path, capfd):
    path = tmp_path / "bench.json"
    assert main([*TINY, "--threads", "1", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["dtype"] for row in rows[::2]] == ["float32", "bfloat16", "bf16-mixed"]
    assert "float32 alone" not in capfd.readouterr().out


def test_float32_alone_is_timed_where_bfloat16_is_slow(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(bench, "has_fast_bfloat16", lambda device: False)
    path = tmp_path / "bench.json"
    assert main([*TINY, "--threads", "1", "--json", str(path)]) == 0
    assert {row["dtype"] for row in json.loads(path.read_text())["rows"]} == {"float32"}
    assert "float32 alone: this processor has no fast bfloat16" in capfd.readouterr().out


@pytest.mark.soak
def test_every_number_of_threads_has_its_rows(tmp_path, monkeypatch):
    counts = []
    monkeypatch.setattr(vit_steps, "measure_matmul_rate", lambda *_: counts.append(torch.get_num_threads()) or 1e12)
    path, before = tmp_path / "bench.json", torch.get_num_threads()
    assert main([*TINY, "--dtype", "float32", "--threads", "1", "2", "--json", str(path)]) == 0
    assert [row["threads"] for row in json.loads(path.read_text())["rows"]] == [1, 1, 2, 2]
    assert counts == [1, 2] and torch.get_num_threads() == before


def test_two_comparisons_at_once_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--attention", "--loading", "images"])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "unused"),
    [
        ([], ["--workers", "3"]),
        (["--pretraining", "ti"], ["--models", "ti/16@32"]),
        (["--contrast", "ti"], ["--pictures", "5"]),
        (["--epoch", "images"], ["--size", "32"]),
        (["--attention"], ["--batch", "4"]),
        (["--loading", "images"], ["--compile"]),
    ],
)
def test_options_without_effect_are_refused(capsys, kind, unused):
    assert main(["bench", *kind, *unused]) == 1
    out, error = capsys.readouterr()
    assert f"error: {unused[0][2:]} must be left out with" in error and error.count("\n") == 1 and not out
