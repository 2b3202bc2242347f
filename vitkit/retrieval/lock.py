"""One writer of a database at a time, also where the one before was killed."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

NAME = ".vitkit.lock"
# Processes that a killed writer had started notice within 5 s that it is gone (torch's MP_STATUS_CHECK_INTERVAL).
PATIENCE = 15.0


@contextmanager
def lock_database(folder: Path, patience: int | float = PATIENCE) -> Iterator[None]:
    """Keep other writers out of a database; the system lets them in when this process is gone.

    Ranks of a writer that was killed may still write: this waits for them, too.

    Raises: ValueError where another process writes and does not end soon.
    """
    end = time.monotonic() + patience
    lock = acquire(folder, NAME, end)
    try:
        for path in folder.glob(f"{NAME}.*"):
            acquire(folder, path.name, end).release()
        yield
    finally:
        lock.release()


def lock_rank(folder: Path, rank: int, patience: int | float = PATIENCE) -> FileLock:
    """Return the lock of a process that writes for its parent, which has locked the database.

    Raises: ValueError where the parent is gone. Where it is not yet, whoever locks the database next waits for this.
    """
    lock = acquire(folder, f"{NAME}.{rank}", time.monotonic() + patience)
    if (parent := multiprocessing.parent_process()) is not None and not parent.is_alive():
        lock.release()
        raise ValueError(f"rank {rank} must have a parent that writes {folder}, got none: process {parent.pid} is gone")
    return lock


def acquire(folder: Path, name: str, end: float) -> FileLock:
    """Return the lock of this name, acquired before `time.monotonic()` passes `end`; its file holds our process id."""
    lock = FileLock(folder / name, on_acquired=write_process)
    try:
        lock.acquire(timeout=max(0.0, end - time.monotonic()))
    except Timeout:
        writer = (folder / name).read_bytes()[:20].decode("ascii", "replace").strip()
        raise ValueError(f"db must have one writer, got {folder}, where process {writer} writes") from None
    return lock


def write_process(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
