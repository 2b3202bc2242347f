"""Locks that admit one writer of a folder at a time, also after a writer was killed."""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".vitkit.lock"
# Workers of a killed writer share its lock and notice within 5 s that it is gone (torch's MP_STATUS_CHECK_INTERVAL).
PATIENCE = 15.0


@contextmanager
def lock_folder(folder: Path, option: str, patience: int | float = PATIENCE) -> Iterator[None]:
    """Keep other writers out of a folder. The system releases the lock when this process ends.

    Args: option: the folder's name in an error. patience: seconds to wait for what a killed writer has left.

    Raises: ValueError, which names the process that writes.
    """
    end = time.monotonic() + (0 if is_running(read_writer(folder / LOCK)) else patience)
    lock = acquire_lock(folder / LOCK, option, end)
    try:
        yield
    finally:
        lock.release()


def acquire_lock(path: Path, option: str, end: float) -> FileLock:
    """Return the lock of a file, acquired before `time.monotonic()` passes `end`; the file names this process."""
    lock = FileLock(path, on_acquired=write_writer)
    try:
        lock.acquire(timeout=max(0.0, end - time.monotonic()))
    except Timeout:
        writer = read_writer(path) or "another process"
        raise ValueError(
            f"{option} must have one writer at a time, got {option}={path.parent}, locked by {writer}; "
            f"wait until it ends, or choose another --{option}"
        ) from None
    return lock


def write_writer(descriptor: int) -> None:
    since = datetime.now().isoformat(" ", "seconds")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)


def read_writer(path: Path) -> str:
    """Return the process in the file of a lock, the last one to have it; "" if there is none."""
    return path.read_bytes()[:200].decode("utf-8", "replace").strip() if path.exists() else ""


def is_running(writer: str) -> bool:
    """Return whether a process runs on this machine."""
    match = re.match(r"process (\d+) on (\S+)", writer)
    if match is None or match[2] != socket.gethostname():
        return False
    try:
        os.kill(int(match[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True
