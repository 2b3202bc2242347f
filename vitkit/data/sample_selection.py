"""The samples of an evaluation: all, or with a fold those that the model was not trained on, by its record."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vitkit.data.sample_record import SampleRecord, divide_source, format_changes
from vitkit.data.sources.source import Source
from vitkit.support.errors import format_count


class Selection(NamedTuple):
    """The samples to evaluate, and the others of a source.

    Args:
        numbers: for report.json: how many of the samples were trained on (None if unknown); with a fold also how many
            were left out for that reason, and the numbers of samples that were added, removed, ... since training.
        trained: the samples that were trained on.
    """

    samples: Sequence[int]
    others: Sequence[int]
    numbers: dict[str, Any]
    trained: frozenset[int] = frozenset()

    def count_readable(self, indices: Iterable[int]) -> dict[str, Any]:
        """Return the numbers of the samples that could be read. A sample that cannot be read was not trained on."""
        if self.numbers["trained_on"] is None:
            return self.numbers
        return {**self.numbers, "trained_on": len(self.trained.intersection(indices))}


def select_all(record: SampleRecord | None, source: Source, samples: Sequence[int]) -> Selection:
    """Return the samples, and count those that were trained on."""
    if record is None:
        return Selection(samples, (), {"trained_on": None})
    trained = frozenset(record.find_trained(source, samples))
    return Selection(samples, (), {"trained_on": len(trained)}, trained)


def select_held_out(
    record: SampleRecord | None,
    source: Source,
    split: tuple[list[int], list[int]],
    fold: int,
    folds: int,
    groups: Sequence[int] | None = None,
) -> Selection:
    """Return the samples that training held out and new ones of the fold; for another fold, those not trained on.

    If there are none, the samples are those of the fold, all of which were trained on.

    Args: split: the samples outside and inside the fold by the rule of training. groups: see `divide_source`.
    """
    training, validation = split
    if record is None:
        return Selection(validation, training, {"trained_on": None})
    if (record.folds, record.fold) == (folds, fold):
        sides = divide_source(record, source, training, validation, groups)
        samples, others, changes = sides.validation, sides.training, sides.changes
        # Of equal content from the start.
        equal = record.contains(sides.digests[1], False)
        trained = frozenset(sample for sample, known in zip(samples, equal, strict=True) if known)
        left_out = len({*others} & {*validation})
    else:
        known = {*record.find_trained(source, validation)}
        samples, others, changes = [sample for sample in validation if sample not in known], training, {}
        trained, left_out = frozenset[int](), len(known)
    if not samples:
        return Selection(validation, training, {"trained_on": len(validation)}, frozenset(validation))
    changes = {name: count for name, count in changes.items() if count}
    numbers = {"trained_on": len(trained), "trained_left_out": left_out, "changes": changes}
    return Selection(samples, others, numbers, trained)


def format_selection(numbers: Mapping[str, Any], unit: str = "pictures") -> list[str]:
    """Return lines on samples that were trained on, and on changes since then; none if there are none.

    Args: unit: the plural of a sample, under which the numbers have their count.
    """
    lines = []
    if trained := numbers.get("trained_on"):
        count = max(trained, numbers[unit])
        part = f"all {unit}" if trained >= count else f"{trained:,} of {count:,} {unit}"
        lines.append(f"trained on: {part}, so the figures overstate those on new {unit}")
    if trained := numbers.get("trained_left_out"):
        lines.append(f"left out: {format_count(trained, unit)} of the fold, as trained on")
    if changes := format_changes(numbers.get("changes", {})):
        lines.append(f"{unit} since training: {changes}; recorded ones stay held out or in training")
    return lines
