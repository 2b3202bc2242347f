"""The report of everything that is left out: files that are no samples, and samples that are dropped or unreadable."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from vitkit.support.errors import escape_controls, format_count


@dataclass(frozen=True)
class Omission:
    """The number of samples or files that were left out for one reason, and the first of them."""

    reason: str
    count: int
    example: str


class Omissions:
    """Counts of what is left out, by reason; a reason begins with a plural, such as "hidden files".

    `unreadable` holds an error for each sample that could not be read, which is one of the reasons.
    """

    def __init__(self) -> None:
        self._by_reason: dict[str, Omission] = {}
        self.unreadable: list[str] = []

    def add(self, reason: str, examples: Sequence[object]) -> None:
        """Count examples under a reason; no examples add nothing."""
        if examples:
            self._count(Omission(reason, len(examples), str(examples[0])))

    def update(self, others: "Omissions") -> None:
        """Add the counts of others."""
        for omission in others._by_reason.values():
            self._count(omission)
        self.unreadable += others.unreadable

    def _count(self, omission: Omission) -> None:
        known = self._by_reason.get(omission.reason, replace(omission, count=0))
        self._by_reason[omission.reason] = replace(known, count=known.count + omission.count)

    def __iter__(self) -> Iterator[Omission]:
        yield from self._by_reason.values()
        if self.unreadable:
            yield Omission("samples that could not be read", len(self.unreadable), self.unreadable[0])

    def format(self, total: int, unit: str = "pictures", shown: int | None = None, more: str = "") -> list[str]:
        """Return a line for each reason, and for each sample that could not be read.

        Args:
            total: the number of samples asked for. unit: their plural.
            shown: the most lines of samples. more: the place of all of them, in words.
        """
        lines = [
            f"left out: {format_count(omission.count, omission.reason)}, such as {omission.example}"
            for omission in self._by_reason.values()
        ]
        lines += [f"error: {error}" for error in self.unreadable[:shown]]
        if self.unreadable:
            lines.append(f"error: {len(self.unreadable):,} of {format_count(total, unit)} could not be read{more}")
        return lines

    def report(self, total: int, unit: str = "pictures", shown: int | None = None, more: str = "") -> int:
        """Print the lines of `format` to standard error. Returns: the exit status, 1 if a sample could not be read."""
        for line in self.format(total, unit, shown, more):
            print(escape_controls(line), file=sys.stderr)
        return 1 if self.unreadable else 0

    def to_json(self) -> dict[str, list[dict[str, str | int]]]:
        """Return the entry of a report file; empty if nothing is left out."""
        omissions = [asdict(omission) for omission in self]
        return {"left_out": omissions} if omissions else {}
