import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.retrieval import lock
from vitkit.retrieval.lock import acquire, lock_database, lock_rank

SCRIPT = Path(__file__).with_name("locking.py")


def test_a_second_writer_is_refused_with_the_first_ones_number_until_it_is_killed(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, SCRIPT, tmp_path], stdout=subprocess.PIPE, text=True)
    assert writer.stdout and writer.stdout.readline() == "locked\n"
    refusal = f"db must have one writer, got {tmp_path}, where process {writer.pid} writes"
    for _ in range(2):  # whoever is refused leaves the number as it is
        with pytest.raises(ValueError, match=refusal), lock_database(tmp_path, patience=0.2):
            pass
    writer.kill()
    writer.communicate()
    for _ in range(2):
        with lock_database(tmp_path, patience=0):
            pass


def test_a_killed_writers_rank_keeps_others_out_as_long_as_it_lives(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, tmp_path, "rank"]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin and writer.stdout and writer.stdout.readline() == "locked\n"
    rank = int(writer.stdout.readline())
    writer.kill()
    writer.wait()
    refusal = f"one writer.*where process {rank} writes"
    with pytest.raises(ValueError, match=refusal), lock_database(tmp_path, patience=0.2):
        pass
    writer.stdin.close()  # the rank ends
    with lock_database(tmp_path, patience=5):
        pass
    writer.stdout.close()


def test_a_rank_that_comes_after_its_parents_end_does_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = multiprocessing.get_context("spawn").Process()
    parent.start()
    parent.join()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    with pytest.raises(ValueError, match=f"process {parent.pid} is gone"):
        lock_rank(tmp_path, 0)
    with lock_database(tmp_path, patience=0):
        pass


def test_a_lock_is_free_after_its_block_also_while_it_is_referred_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = []
    monkeypatch.setattr(lock, "acquire", lambda *arguments: locks.append(acquire(*arguments)) or locks[-1])
    with lock_database(tmp_path, patience=0):
        assert locks[0].is_locked
    assert not locks[0].is_locked
    with pytest.raises(KeyError), lock_database(tmp_path, patience=0):
        raise KeyError("a writer that fails")
    assert len(locks) == 2 and not locks[1].is_locked
