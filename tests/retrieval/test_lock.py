import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitkit.retrieval.lock import Lock

HOLD = "import sys, time; from pathlib import Path; from vitkit.retrieval.lock import Lock; "
HOLD += "lock = Lock.take(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_a_second_writer_is_refused_with_the_first_ones_number_until_it_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=f"db must have one writer, got {tmp_path}, where process {holder.pid} writes"):
        Lock.take(tmp_path, patience=0.2)
    holder.kill()
    holder.communicate()
    Lock.take(tmp_path, patience=0).release()
    Lock.take(tmp_path, patience=0).release()


def wait(lock: Lock, seconds: float) -> None:
    time.sleep(seconds)


def test_a_process_that_was_started_with_it_keeps_it(tmp_path: Path) -> None:
    lock = Lock.take(tmp_path)
    child = multiprocessing.get_context("spawn").Process(target=wait, args=(lock, 60))
    child.start()
    lock.close()
    with pytest.raises(ValueError, match="one writer"):
        Lock.take(tmp_path, patience=0.2)
    child.kill()
    child.join()
    Lock.take(tmp_path, patience=5).release()
