"""Two models' statistics side by side: trained and not, before and after.

H heads.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from vitkit.interpret.measure.moments import Summary, difference
from vitkit.interpret.measure.statistics import Statistics

SHOWN = 3  # heads of a measure


class Change(NamedTuple):
    """Of one head; the difference lies between low and high with 95 %."""

    measure: str
    layer: str
    head: int
    before: float
    after: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.measure} of head {self.head} of {self.layer}: {self.before:.3g} -> {self.after:.3g} "
            f"({self.after - self.before:+.3g}, 95 % {self.low:+.3g} to {self.high:+.3g})"
        )


@dataclass(frozen=True)
class Comparison:
    """After minus before: a Summary of (H,) for each layer and measure, and the heads that changed most."""

    layers: tuple[str, ...]
    differences: dict[str, tuple[Summary, ...]]
    most: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        differences = {name: [one.to_dict() for one in found] for name, found in self.differences.items()}
        return {
            "layers": [*self.layers],
            "differences": differences,
            "most": [change._asdict() for change in self.most],
        }


def compare_statistics(before: Statistics, after: Statistics) -> Comparison:
    """Layer by layer, in order, as their names may differ; of the measures that both have.

    The intervals are those of two independent samples: wider than need be where both saw the same pictures. Of each
    measure `most` has the heads with the largest changes whose interval leaves out 0.

    Raises: ValueError where layers or heads are not as many.
    """
    refuse_unlike(before, after)
    count = before.count, after.count
    differences = {
        name: tuple(difference(*pair, count) for pair in zip(found, after.measures[name], strict=True))
        for name, found in before.measures.items()
        if name in after.measures
    }
    found = [
        sorted(changes(name, before, after, summaries), key=lambda change: -abs(change.after - change.before))[:SHOWN]
        for name, summaries in differences.items()
    ]
    return Comparison(after.layers, differences, tuple(change for part in found for change in part))


def refuse_unlike(before: Statistics, after: Statistics) -> None:
    """Raises: ValueError where layers or heads are not as many."""
    shapes = [[len(matrix) for matrix in one.similarity] for one in (before, after)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"before and after must have equal layers and heads, got heads of {shapes[0]} and {shapes[1]}")


def changes(name: str, before: Statistics, after: Statistics, differences: tuple[Summary, ...]) -> list[Change]:
    """Those that are more than chance."""
    found: list[Change] = []
    for place, (layer, summary) in enumerate(zip(after.layers, differences, strict=True)):
        ends = before.measures[name][place].mean, after.measures[name][place].mean, summary.low, summary.high
        for head, row in enumerate(zip(*(column.tolist() for column in ends), strict=True)):
            if row[2] > 0 or row[3] < 0:
                found.append(Change(name, layer, head, *row))
    return found
