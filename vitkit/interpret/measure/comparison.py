"""Comparison of two models' head statistics, such as before and after training.

H heads.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from vitkit.interpret.measure.moments import Summary, subtract_summaries
from vitkit.interpret.measure.statistics import Statistics

LARGEST_CHANGES = 3  # heads reported for each measure


class Change(NamedTuple):
    """Change of a measure of one head, with the 95 % confidence interval of the difference."""

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
        return {
            "layers": [*self.layers],
            "differences": {
                name: [summary.to_dict() for summary in summaries] for name, summaries in self.differences.items()
            },
            "most": [change._asdict() for change in self.most],
        }


def compare_statistics(before: Statistics, after: Statistics) -> Comparison:
    """Compare the measures that both models have, layer by layer in order: names may differ.

    The intervals are those of two independent samples: too wide if both models saw the same images. `most` has the
    largest changes of each measure whose interval excludes 0.

    Raises: ValueError for unequal numbers of layers or heads.
    """
    check_comparable(before, after)
    counts = before.count, after.count
    differences = {
        name: tuple(subtract_summaries(*pair, counts) for pair in zip(summaries, after.measures[name], strict=True))
        for name, summaries in before.measures.items()
        if name in after.measures
    }
    changes: list[Change] = []
    for name, summaries in differences.items():
        significant = find_changes(name, before, after, summaries)
        changes += sorted(significant, key=lambda change: -abs(change.after - change.before))[:LARGEST_CHANGES]
    return Comparison(after.layers, differences, tuple(changes))


def check_comparable(before: Statistics, after: Statistics) -> None:
    """Raise a ValueError for unequal numbers of layers or heads."""
    shapes = [[len(matrix) for matrix in statistics.similarity] for statistics in (before, after)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"before and after must have equal layers and heads, got heads of {shapes[0]} and {shapes[1]}")


def find_changes(name: str, before: Statistics, after: Statistics, differences: tuple[Summary, ...]) -> list[Change]:
    """Return the changes of a measure whose interval excludes 0."""
    changes: list[Change] = []
    for index, (layer, summary) in enumerate(zip(after.layers, differences, strict=True)):
        columns = before.measures[name][index].mean, after.measures[name][index].mean, summary.low, summary.high
        for head, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            if row[2] > 0 or row[3] < 0:
                changes.append(Change(name, layer, head, *row))
    return changes
