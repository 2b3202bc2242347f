import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitkit.bench import machine_load
from vitkit.bench.machine_load import LoadWatch, Usage, compute_share, format_note, measure_usage

LINUX = pytest.mark.skipif(not machine_load.PROC.exists(), reason="/proc is Linux's")


def write_proc(proc: Path, processors: str, processes: dict[int, tuple[str, int, str]]) -> None:
    (proc / "stat").write_text(f"cpu  {processors}\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    for pid, (name, parent, times) in processes.items():
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 0 0 0 0 0 0 0 0 0 {times} 20 0 1 0\n")


def test_usage_counts_descendants_and_stolen_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "PROC", tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: 7)
    family = {7: ("python", 1, "10 20 30 40"), 8: ("a) b (c", 7, "1 2 0 0"), 9: ("deep", 8, "5 0 0 0")}
    write_proc(tmp_path, "100 10 50 700 40 5 5 90 60 0", family | {10: ("other", 1, "900 0 0 0")})
    tick = os.sysconf("SC_CLK_TCK")
    assert measure_usage() == Usage(1000 / tick, 260 / tick, 108 / tick)


def test_a_system_without_proc_has_no_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "PROC", tmp_path)
    assert measure_usage() is None and compute_share(None, None) is None
    assert "is not known on this system" in (format_note([None]) or "")


def test_share_is_of_the_time_of_all_processors() -> None:
    assert compute_share(Usage(100, 50, 40), Usage(104, 53, 42)) == 0.25
    assert compute_share(Usage(100, 50, 40), Usage(104, 51, 42)) == 0  # counted in ticks, which are coarse
    assert compute_share(Usage(100, 50, 40), Usage(100, 50, 40)) == 0


def test_measurements_shortly_after_each_other_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    usages = iter([Usage(10, 10, 10), Usage(20, 15, 12), Usage(20.01, 15.01, 12), Usage(30, 25, 22)])
    monkeypatch.setattr(machine_load, "measure_usage", lambda: next(usages))
    watch = LoadWatch()
    assert [watch.measure_share() for _ in range(3)] == pytest.approx([0.3, 0.3, 0.0])


def test_note_counts_the_noisy_rows() -> None:
    assert format_note([0.0, 0.05]) is None
    note = format_note([0.01, 0.23, 0.06])
    assert note and "up to 23% of the processor" in note and "in 2 of 3 rows" in note


@LINUX
def test_time_of_a_child_counts_as_this_process() -> None:
    before, code = measure_usage(), "import time\nwhile time.process_time() < 0.4: pass"
    child = subprocess.Popen([sys.executable, "-c", code + "\ninput()"], stdin=subprocess.PIPE)
    time.sleep(0.1)
    deadline = time.monotonic() + 60
    while (living := measure_usage()) and before and living.ours - before.ours < 0.35 and time.monotonic() < deadline:
        time.sleep(0.05)
    child.communicate(b"\n")
    ended = measure_usage()
    assert before and living and ended
    assert living.ours - before.ours >= 0.35
    assert ended.ours >= living.ours - 0.05  # ticks
