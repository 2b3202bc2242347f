"""Locks that admit one writer of a database at a time, also after a writer was killed."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

NAME = ".vitkit.lock"
# Workers of a killed writer notice within 5 s that it is gone (torch's MP_STATUS_CHECK_INTERVAL).
PATIENCE = 15.0


@contextmanager
def lock_database(folder: Path, patience: int | float = PATIENCE) -> Iterator[None]:
    """Keep other writers out of a database. The system releases the lock when this process ends.

    Ranks of a killed writer may still write; this waits for them, too.

    Raises: ValueError if another process still writes after `patience` seconds.
    """
    end = time.monotonic() + patience
    lock = acquire_lock(folder, NAME, end)
    try:
        for path in folder.glob(f"{NAME}.*"):
            acquire_lock(folder, path.name, end).release()
        yield
    finally:
        lock.release()


def lock_rank(folder: Path, rank: int, patience: int | float = PATIENCE) -> FileLock:
    """Return the lock of a process that writes for its parent, which has locked the database.

    If the parent ends later, the next writer waits for this lock. Raises: ValueError if the parent is gone.
    """
    lock = acquire_lock(folder, f"{NAME}.{rank}", time.monotonic() + patience)
    if (parent := multiprocessing.parent_process()) is not None and not parent.is_alive():
        lock.release()
        raise ValueError(f"rank {rank} must have a parent that writes {folder}, got none: process {parent.pid} is gone")
    return lock


def acquire_lock(folder: Path, name: str, end: float) -> FileLock:
    """Return the lock of this name, acquired before `time.monotonic()` passes `end`; its file holds our process id."""
    lock = FileLock(folder / name, on_acquired=write_process_id)
    try:
        lock.acquire(timeout=max(0.0, end - time.monotonic()))
    except Timeout:
        writer = (folder / name).read_bytes()[:20].decode("ascii", "replace").strip()
        raise ValueError(f"db must have one writer, got {folder}, where process {writer} writes") from None
    return lock


def write_process_id(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
