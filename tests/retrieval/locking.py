"""Lock a database until this is killed: `locking.py DB [rank]`.

With `rank`, a child process prints its id and holds the lock of a rank until stdin ends.
"""

import multiprocessing
import os
import sys
import time
from pathlib import Path

from vitkit.retrieval.lock import lock_database, lock_rank


def write_as_rank(folder: Path, stdin: int) -> None:
    lock = lock_rank(folder, 1)
    print(os.getpid(), flush=True)
    os.read(stdin, 1)
    lock.release()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with lock_database(folder):
        print("locked", flush=True)
        if sys.argv[2:] == ["rank"]:
            context = multiprocessing.get_context("spawn")
            context.Process(target=write_as_rank, args=(folder, 0)).start()
        time.sleep(60)
