"""Indexing that is killed at any moment continues without loss."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vitkit.retrieval.collection import Collection
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.store import Store
from vitkit.retrieval.writer import IndexReading

SCRIPT = Path(__file__).with_name("killable.py")
SMALL = IndexReading(batch=8, commit=16)  # as in the script


def kill_after(script: subprocess.Popen[str], db: Path, seconds: float) -> None:
    """Start to index, and kill the process after so many seconds."""
    assert script.stdin and script.stdout
    print(db, file=script.stdin, flush=True)
    process = int(script.stdout.readline())
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)  # its id is not reused, even if it has ended
    print(file=script.stdin, flush=True)
    assert script.stdout.readline() == "ended\n"


def count_progress(kills: int, pictures: int, tmp_path: Path, clip: Embedder, draw: Callable[[Path, int], None]) -> int:
    """Kill the indexing so often, then index to the end; return the number of runs that committed before their kill."""
    draws, progress, count, duration = random.Random(0), 0, 0, 0.0
    for seed in range(pictures):
        draw(tmp_path / "pictures" / f"{seed % 7}/{seed}.png", seed)
        if seed % 5 == 0:
            (tmp_path / f"pictures/{seed % 7}/{seed}.txt").write_text(f"number {seed}\nanother\n")
    (tmp_path / "pictures/broken.png").write_bytes(b"")
    for name in ("first", "second"):  # the first also imports
        start = time.perf_counter()
        Collection(tmp_path / name, clip, device="cpu").index(tmp_path / "pictures", reading=SMALL)
        duration = time.perf_counter() - start
    command = [sys.executable, SCRIPT, tmp_path / "pictures"]
    script = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(kills):
        kill_after(script, tmp_path / "db", draws.uniform(0, 3 * duration / kills))
        collection = Collection(tmp_path / "db", clip, device="cpu")
        last_count, count = count, len(collection) if Store.exists(tmp_path / "db") else 0
        progress += count > last_count
    script.communicate()
    collection = Collection(tmp_path / "db", clip, device="cpu")
    last = collection.index(tmp_path / "pictures")
    assert last.encoded + last.unchanged + last.reused == pictures
    assert (last.unreadable, last.removed) == (1, 0)
    for condition in ("line = 0", "line > 0"):
        rows = collection.store.items.search().where(condition).select(["path", "line"]).limit(None).to_arrow()
        stored = sorted(map(tuple, (row.values() for row in rows.to_pylist())))
        names = {f"{seed % 7}/{seed}.png" for seed in range(pictures) if condition == "line = 0" or seed % 5 == 0}
        lines = (0,) if condition == "line = 0" else (1, 2)
        assert stored == sorted((name, line) for name in names for line in lines)
    again = collection.index(tmp_path / "pictures")
    assert again[:7] == (0, 0, 0, 0, pictures, 0, 1)
    return progress


@pytest.mark.slow
def test_three_kills_lose_and_repeat_nothing(tmp_path: Path, clip: Embedder, draw: Callable[[Path, int], None]) -> None:
    count_progress(3, 200, tmp_path, clip, draw)


@pytest.mark.soak
def test_twenty_kills_lose_and_repeat_nothing(
    tmp_path: Path, clip: Embedder, draw: Callable[[Path, int], None]
) -> None:
    assert count_progress(20, 2000, tmp_path, clip, draw) >= 3
