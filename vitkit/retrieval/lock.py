"""One writer at a time, also where the one before was killed."""

import fcntl
import os
import time
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

NAME = ".vitkit.lock"
# Processes that a killed writer had started notice within 5 s that it is gone (torch's MP_STATUS_CHECK_INTERVAL).
PATIENCE = 15.0


class Lock:
    """Held until it is released, or until every process that has it is gone: the system sees to that.

    Sent to another process as it starts, it is the same lock there.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, patience: int | float = PATIENCE) -> "Lock":
        """Raises: ValueError where another process writes and does not end soon."""
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        end = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    writer = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
                    os.close(descriptor)
                    raise ValueError(f"db must have one writer, got {folder}, where process {writer} writes") from None
                time.sleep(0.1)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """For all processes that have it."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """For this process; others may still have it."""
        os.close(self.descriptor)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return adopted, (DupFd(self.descriptor),)


def adopted(duplicate: Any) -> Lock:
    return Lock(duplicate.detach())
