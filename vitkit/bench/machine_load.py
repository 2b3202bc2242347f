"""Measure how much of the processor other processes use meanwhile: from Linux's /proc, see proc(5)."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
QUIET = 0.05  # a larger share for others, and a timing is not of a quiet machine
SPAN = 0.5  # seconds of processors that are at least measured, which the system counts in hundredths


class Usage(NamedTuple):
    """Seconds of all processors since the start: all that passed, those used by anybody, and by this process."""

    passed: float
    used: float
    ours: float


def measure_usage() -> Usage | None:
    """Return the usage until now, with descendants counted as this process; None on systems without /proc.

    Time that the host gave to other virtual machines is used.
    """
    if not (PROC / "stat").exists():
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, _words(PROC / "stat")[1:9])
    used = user + nice + system + irq + softirq + steal
    ours = sum(_ticks())
    tick = os.sysconf("SC_CLK_TCK")
    return Usage((used + idle + iowait) / tick, used / tick, ours / tick)


def compute_share(before: Usage | None, after: Usage | None) -> float | None:
    """Return the part of the processors' time between two moments that other processes used."""
    if before is None or after is None:
        return None
    passed, used, ours = (end - start for start, end in zip(before, after, strict=True))
    return min(max(0.0, used - ours) / passed, 1.0) if passed > 0 else 0.0


class Watch:
    """The share of others since the watch was last asked. Asked at once again, it gives the same answer."""

    def __init__(self) -> None:
        self.usage = measure_usage()
        self.latest: float | None = None

    def share(self) -> float | None:
        usage = measure_usage()
        if self.latest is None or (self.usage and usage and usage.passed - self.usage.passed >= SPAN):
            self.latest = compute_share(self.usage, usage)
            self.usage = usage
        return self.latest


def is_noisy(share: float | None) -> bool:
    return share is not None and share > QUIET


def format_note(shares: Sequence[float | None]) -> str | None:
    """Return a line where other processes disturbed the timing of a row. Args: shares: of each row."""
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return "note: the use of the processor by other processes is not known on this system"
    if not (noisy := [share for share in known if is_noisy(share)]):
        return None
    return (
        f"note: other processes used up to {max(noisy):.0%} of the processor during the timing, more than {QUIET:.0%} "
        f"in {len(noisy)} of {len(known)} rows, marked *; repeat on a quiet machine"
    )


def _ticks() -> Iterator[int]:
    """Yield the time of this process and of each descendant, with that of children that have ended."""
    fields = dict(_processes())
    family = {os.getpid()}
    while grown := {pid for pid, words in fields.items() if int(words[1]) in family} - family:
        family |= grown
    for pid in family & fields.keys():
        yield sum(map(int, fields[pid][11:15]))  # utime, stime, cutime, cstime


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each process and its fields from `state` on."""
    for path in PROC.glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), path.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue


def _words(path: Path) -> list[str]:
    return path.read_text("utf-8").split()
