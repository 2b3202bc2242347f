"""Locks of a database: of its writer, and of the processes that write for it."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from vitkit.support.folder_lock import LOCK, PATIENCE, acquire_lock, lock_folder


@contextmanager
def lock_database(folder: Path, patience: int | float = PATIENCE) -> Iterator[None]:
    """Keep other writers out of a database. Ranks of a killed writer may still write; this waits for them, too.

    Raises: ValueError if another process writes.
    """
    with lock_folder(folder, "db", patience):
        end = time.monotonic() + patience
        for path in folder.glob(f"{LOCK}.*"):
            acquire_lock(path, "db", end).release()
        yield


def lock_rank(folder: Path, rank: int, patience: int | float = PATIENCE) -> FileLock:
    """Return the lock of a process that writes for its parent, which has locked the database.

    If the parent ends later, the next writer waits for this lock. Raises: ValueError if the parent is gone.
    """
    lock = acquire_lock(folder / f"{LOCK}.{rank}", "db", time.monotonic() + patience)
    if (parent := multiprocessing.parent_process()) is not None and not parent.is_alive():
        lock.release()
        raise ValueError(f"rank {rank} must have a parent that writes {folder}, got none: process {parent.pid} is gone")
    return lock
