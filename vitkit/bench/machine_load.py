"""Measurement of the processor time that other processes use, from Linux's /proc, see proc(5)."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
QUIET = 0.05  # larger share of other processes at which a row is marked
SPAN = 0.5  # least processor seconds of a measurement: the system counts in hundredths


class Usage(NamedTuple):
    """Seconds of all processors since the start: in total, used by all processes, and by this process."""

    passed: float
    used: float
    ours: float


def measure_usage() -> Usage | None:
    """Return the usage until now; None on systems without /proc. Descendants count as this process.

    Time that the host gave to other virtual machines counts as used.
    """
    if not (PROC / "stat").exists():
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, _read_words(PROC / "stat")[1:9])
    used = user + nice + system + irq + softirq + steal
    ours = sum(_list_ticks())
    tick = os.sysconf("SC_CLK_TCK")
    return Usage((used + idle + iowait) / tick, used / tick, ours / tick)


def compute_share(before: Usage | None, after: Usage | None) -> float | None:
    """Return the share of the processors' time between two moments that other processes used."""
    if before is None or after is None:
        return None
    passed, used, ours = (end - start for start, end in zip(before, after, strict=True))
    return min(max(0.0, used - ours) / passed, 1.0) if passed > 0 else 0.0


class LoadWatch:
    """A watch that measures the share of other processes since the last measurement."""

    def __init__(self) -> None:
        self.usage = measure_usage()
        self.latest: float | None = None

    def measure_share(self) -> float | None:
        """Return the share; the last one if less than SPAN has passed since."""
        usage = measure_usage()
        if self.latest is None or (self.usage and usage and usage.passed - self.usage.passed >= SPAN):
            self.latest = compute_share(self.usage, usage)
            self.usage = usage
        return self.latest


def is_noisy(share: float | None) -> bool:
    return share is not None and share > QUIET


def format_note(shares: Sequence[float | None]) -> str | None:
    """Return a note if other processes disturbed the timing of a row. Args: shares: of each row."""
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return "note: the use of the processor by other processes is not known on this system"
    if not (noisy := [share for share in known if is_noisy(share)]):
        return None
    return (
        f"note: other processes used up to {max(noisy):.0%} of the processor during the timing, more than {QUIET:.0%} "
        f"in {len(noisy)} of {len(known)} rows, marked *; repeat on a quiet machine"
    )


def _list_ticks() -> Iterator[int]:
    """Yield the time of this process and of each descendant, with that of children that have ended."""
    fields = dict(_list_processes())
    family = {os.getpid()}
    while grown := {pid for pid, words in fields.items() if int(words[1]) in family} - family:
        family |= grown
    for pid in family & fields.keys():
        yield sum(map(int, fields[pid][11:15]))  # utime, stime, cutime, cstime


def _list_processes() -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each process and its fields from `state` on."""
    for path in PROC.glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), path.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue


def _read_words(path: Path) -> list[str]:
    return path.read_text("utf-8").split()
