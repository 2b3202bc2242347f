import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.retrieval.lock import lock_database, lock_rank
from vitkit.support import folder_lock
from vitkit.support.folder_lock import acquire_lock

SCRIPT = Path(__file__).with_name("locking.py")


def test_second_writer_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, SCRIPT, tmp_path], stdout=subprocess.PIPE, text=True)
    assert writer.stdout and writer.stdout.readline() == "locked\n"
    refusal = f"db must have one writer at a time, got db={tmp_path}, locked by process {writer.pid} on .* since 20"
    for _ in range(2):  # a refused writer leaves the id in the file
        with pytest.raises(ValueError, match=refusal), lock_database(tmp_path, patience=0.2):
            pass
    writer.kill()
    writer.communicate()
    for _ in range(2):
        with lock_database(tmp_path, patience=0):
            pass


def test_rank_of_a_killed_writer_keeps_its_lock_until_it_ends(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, tmp_path, "rank"]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin and writer.stdout and writer.stdout.readline() == "locked\n"
    rank = int(writer.stdout.readline())
    writer.kill()
    writer.wait()
    refusal = f"one writer.*locked by process {rank} "
    with pytest.raises(ValueError, match=refusal), lock_database(tmp_path, patience=0.2):
        pass
    writer.stdin.close()  # the rank ends
    with lock_database(tmp_path, patience=5):
        pass
    writer.stdout.close()


def test_rank_without_a_parent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = multiprocessing.get_context("spawn").Process()
    parent.start()
    parent.join()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    with pytest.raises(ValueError, match=f"process {parent.pid} is gone"):
        lock_rank(tmp_path, 0)
    with lock_database(tmp_path, patience=0):
        pass


def test_lock_is_released_after_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = []
    monkeypatch.setattr(
        folder_lock, "acquire_lock", lambda *arguments: locks.append(acquire_lock(*arguments)) or locks[-1]
    )
    with lock_database(tmp_path, patience=0):
        assert locks[0].is_locked
    assert not locks[0].is_locked
    with pytest.raises(KeyError), lock_database(tmp_path, patience=0):
        raise KeyError("a writer that fails")
    assert len(locks) == 2 and not locks[1].is_locked
