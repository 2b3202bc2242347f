"""The one report of what is left out: files that a listing passes over, samples that are dropped or cannot be read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Omission:
    """How many were left out for one reason, and the first of them."""

    reason: str
    count: int
    example: str


class Omissions:
    """Counts of what is left out, by reason; a reason is a plural such as "hidden files"."""

    def __init__(self, omissions: Iterable[Omission] = ()) -> None:
        self._by_reason = {omission.reason: omission for omission in omissions}

    def add(self, reason: str, examples: Sequence[object]) -> None:
        """Count these under a reason; none adds nothing."""
        if examples:
            known = self._by_reason.get(reason, Omission(reason, 0, str(examples[0])))
            self._by_reason[reason] = replace(known, count=known.count + len(examples))

    def update(self, others: "Omissions") -> None:
        """Count those of others too."""
        for omission in others:
            known = self._by_reason.get(omission.reason, replace(omission, count=0))
            self._by_reason[omission.reason] = replace(known, count=known.count + omission.count)

    def __iter__(self) -> Iterator[Omission]:
        return iter(self._by_reason.values())

    def __len__(self) -> int:
        """Return how many are left out, whatever the reason."""
        return sum(omission.count for omission in self)

    def format(self) -> list[str]:
        """Return a line for each reason."""
        return [f"left out: {each.count:,} {each.reason}, such as {each.example}" for each in self]

    def to_json(self) -> list[dict[str, str | int]]:
        """Return what a report file holds."""
        return [asdict(omission) for omission in self]
