"""The record of the samples that a model was trained on, and of those that were held out: 16 bytes a sample.

A key holds 40 bits of a hash of the sample's name, relative to its source, 23 bits of its size in bytes, and a bit that
is set if it is held out. A digest is a hash of its content, taken when it is first read, and 0 until then.

N samples of a record, S samples of a source.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from vitkit.data.preprocess import PictureError
from vitkit.data.sources.source import Source
from vitkit.support.progress import track_progress

HELD_OUT = np.uint64(1)
SIZE = np.uint64(2**24 - 2)
NAME = np.uint64(2**64 - 2**24)
NEW = -1  # the row of a sample that is not in a record


class SampleRecord(NamedTuple):
    """The keys and digests of samples.

    Args: folds, fold: the split, of which one fold is held out; 0 folds if another source validates.
    """

    keys: UInt64[np.ndarray, " N"] = np.zeros(0, np.uint64)
    digests: UInt64[np.ndarray, " N"] = np.zeros(0, np.uint64)
    folds: int = 0
    fold: int = 0

    @property
    def held_out(self) -> Bool[np.ndarray, " N"]:
        return (self.keys & HELD_OUT) > 0

    def select(self, rows: Bool[np.ndarray, " N"]) -> "SampleRecord":
        return self._replace(keys=self.keys[rows], digests=self.digests[rows])

    def add(self, other: "SampleRecord") -> "SampleRecord":
        """Return the samples of this record, followed by those of another."""
        keys, digests = np.concatenate([self.keys, other.keys]), np.concatenate([self.digests, other.digests])
        return self._replace(keys=keys, digests=digests)

    def contains(self, digests: UInt64[np.ndarray, " S"], held_out: bool) -> Bool[np.ndarray, " S"]:
        """Return whether each digest is of a sample that was held out, or of one that was trained on; 0 is of none."""
        return np.isin(digests, self.digests[self.held_out == held_out]) & (digests > 0)

    def find_trained(self, source: Source, samples: Sequence[int]) -> list[int]:
        """Return the samples that were trained on: those of equal content, or of equal name and size where the record
        has no content. Only samples of a recorded size are read."""
        trained, keys = self.select(~self.held_out), make_keys(source, samples)
        digests = read_digests(source, samples, np.isin(keys & SIZE, trained.keys & SIZE))
        equal = trained.contains(digests, False) | np.isin(keys, trained.keys[trained.digests == 0])
        return [sample for sample, trained_on in zip(samples, equal, strict=True) if trained_on]


class Match(NamedTuple):
    """The samples of a source, matched with the rows of a record.

    Args:
        rows: of the same name and size, else of the same name; NEW for others.
        same: whether that row is of the same name and size, and not known to be of another content.
        keys: of each sample, as of training samples.
        digests: of each sample; 0 where it is not known.
    """

    rows: Int64[np.ndarray, " S"]
    same: Bool[np.ndarray, " S"]
    keys: UInt64[np.ndarray, " S"]
    digests: UInt64[np.ndarray, " S"]

    def count_changes(self, record: SampleRecord, eligible: Bool[np.ndarray, " N"]) -> dict[str, int]:
        """Return the numbers of samples that were added, removed, renamed (or moved) and replaced by another content.

        All are 0 if no sample is of this record, as for another source.
        """
        missing = eligible & ((record.keys & NAME) > 0)
        missing[self.rows[self.same]] = False
        renamed = ~self.same & np.isin(self.digests, record.digests[missing & (record.digests > 0)])
        replaced = ~self.same & ~renamed & (self.rows != NEW)
        missing[self.rows[replaced]] = False
        removed = max(0, int(missing.sum()) - int(renamed.sum()))
        added = ~self.same & ~renamed & ~replaced
        counts = {"added": added.sum(), "removed": removed, "renamed": renamed.sum(), "replaced": replaced.sum()}
        return {name: 0 if added.all() else int(count) for name, count in counts.items()}


class Sides(NamedTuple):
    """The samples to train on and those to hold out.

    Args:
        keys, digests: of both.
        past: a record of samples that were trained on and are gone.
        changes: the numbers of samples that were added, removed, renamed, replaced and left out.
    """

    training: list[int]
    validation: list[int]
    keys: tuple[UInt64[np.ndarray, " T"], UInt64[np.ndarray, " V"]]
    digests: tuple[UInt64[np.ndarray, " T"], UInt64[np.ndarray, " V"]]
    past: SampleRecord
    changes: Mapping[str, int]


def divide_samples(
    record: SampleRecord,
    source: Source,
    held_out: Source,
    training: Sequence[int],
    validation: Sequence[int],
    groups: Sequence[int] | None = None,
) -> Sides:
    """Divide the source of training and that of validation, which may be the same; see the functions for either."""
    if source is held_out and not {*training} & {*validation}:
        return divide_source(record, source, training, validation, groups)
    return divide_sources(record, source, held_out, training, validation)


def divide_source(
    record: SampleRecord,
    source: Source,
    training: Sequence[int],
    validation: Sequence[int],
    groups: Sequence[int] | None = None,
) -> Sides:
    """Divide a source: recorded samples stay on their side, new ones follow their group, else the given split.

    The contents of held-out samples are always read, so that none of them was trained on. New samples whose group is on
    both sides are left out.

    Args: training, validation: the split of the source by its rule. groups: of each sample of the source.
    """
    samples = sorted({*training, *validation})
    match = match_samples(record, source, samples, np.ones(len(record.keys), bool))
    sides = np.full(len(samples), NEW)
    sides[match.rows != NEW] = record.held_out[match.rows[match.rows != NEW]]
    for side in (True, False):  # what was on both sides was trained on
        sides[~match.same & record.contains(match.digests, side)] = side
    by_group: dict[int, set[bool]] = {}
    if groups is not None:
        for place in np.flatnonzero(sides != NEW).tolist():
            by_group.setdefault(groups[samples[place]], set()).add(bool(sides[place]))
    by_rule, left_out = {*validation}, 0
    for place in np.flatnonzero(sides == NEW).tolist():
        choices = {samples[place] in by_rule}
        if groups is not None:
            choices = by_group.get(groups[samples[place]], choices)
        if len(choices) == 1:
            sides[place] = min(choices)
        else:
            left_out += 1
    places = [np.flatnonzero(sides == side) for side in (False, True)]
    changes = match.count_changes(record, np.ones(len(record.keys), bool)) | {"left out": left_out}
    training, validation = ([samples[place] for place in side] for side in map(np.ndarray.tolist, places))
    keys = match.keys[places[0]], match.keys[places[1]] | HELD_OUT
    digests = match.digests[places[0]], match.digests[places[1]]
    return Sides(training, validation, keys, digests, select_past(record, digests[0]), changes)


def divide_sources(
    record: SampleRecord, source: Source, held_out: Source, training: Sequence[int], validation: Sequence[int]
) -> Sides:
    """Keep samples of two sources apart: validation samples that were trained on since they were recorded are left out.

    What was in both sources from the start stays so.
    """
    left = match_samples(record, source, training, ~record.held_out)
    right = match_samples(record, held_out, validation, record.held_out)
    trained = ~right.same & record.contains(right.digests, False) & ~record.contains(right.digests, True)
    trained &= ~(np.isin(right.digests, left.digests) & (right.rows != NEW) & (take(record.digests, right.rows) == 0))
    counts = left.count_changes(record, ~record.held_out), right.count_changes(record, record.held_out)
    changes = {name: counts[0][name] + counts[1][name] for name in counts[0]} | {"left out": int(trained.sum())}
    kept = [sample for sample, trained_on in zip(validation, trained, strict=True) if not trained_on]
    keys, digests = (left.keys, right.keys[~trained] | HELD_OUT), (left.digests, right.digests[~trained])
    return Sides([*training], kept, keys, digests, select_past(record, left.digests), changes)


def match_samples(
    record: SampleRecord, source: Source, samples: Sequence[int], eligible: Bool[np.ndarray, " N"]
) -> Match:
    """Match samples with the rows of a record by name and size, and read the contents that decide where names do not.

    They are those of held-out samples and, if their size is recorded, of samples without a row. If one of them has
    another content than before, names have moved, as when the rows of a table were shuffled, and all are read. Samples
    of another content match by name alone, unless all are: they are of another source.

    Args: eligible: the rows that may match by name.
    """
    keys = make_keys(source, samples)
    rows = find_rows(keys, record.keys & ~HELD_OUT, eligible)
    recorded = np.isin(keys & SIZE, record.keys & SIZE)
    read = np.where(rows == NEW, recorded, take(record.held_out, rows))
    digests = read_digests(source, samples, read)
    before = take(record.digests, rows)
    # Equal to a training sample, and not read before: from the start, if that sample still has its content.
    twins = (rows != NEW) & (before == 0) & record.contains(digests, False)
    digests |= read_digests(source, samples, np.isin(before, digests[twins]) & ~read)
    moved = ((digests != before) & (digests > 0) & (before > 0)).any() or not np.isin(digests[twins], before).all()
    if moved:
        digests |= read_digests(source, samples, recorded & (digests == 0))
        twins = (rows != NEW) & (before == 0) & record.contains(digests, False)
    same = (rows != NEW) & ((digests == 0) | (digests == before) | ((before == 0) & ~(twins & moved)))
    digests = np.where(same & (digests == 0), before, digests)
    missing = eligible.copy()
    missing[rows[rows != NEW]] = False
    if same.any() or np.isin(digests, record.digests[record.digests > 0]).any():
        rows = np.where(rows == NEW, find_rows(keys & NAME, record.keys & NAME, missing), rows)
    else:  # another source, of which names say nothing
        rows = np.full(len(samples), NEW)
    return Match(rows, same, keys, digests)


def find_rows(
    keys: UInt64[np.ndarray, " S"], recorded: UInt64[np.ndarray, " N"], eligible: Bool[np.ndarray, " N"]
) -> Int64[np.ndarray, " S"]:
    """Return the eligible row of each key, NEW if there is none."""
    rows = np.flatnonzero(eligible & ((recorded & NAME) > 0))
    if not len(rows):
        return np.full(len(keys), NEW)
    order = rows[np.argsort(recorded[rows], kind="stable")]
    places = np.searchsorted(recorded[order], keys).clip(max=len(order) - 1)
    return np.where(recorded[order][places] == keys, order[places], NEW)


def take(values: np.ndarray, rows: Int64[np.ndarray, " S"]) -> np.ndarray:
    """Return the value of each row, 0 where there is none."""
    return np.append(values, np.zeros(1, values.dtype))[rows]


def select_past(record: SampleRecord, training: UInt64[np.ndarray, " T"]) -> SampleRecord:
    """Return the trained samples of a record that are no training samples now, without their names."""
    rows = ~record.held_out & (record.digests > 0) & ~np.isin(record.digests, training)
    past = record.select(rows)
    return past._replace(keys=past.keys & SIZE)


def make_keys(source: Source, samples: Sequence[int]) -> UInt64[np.ndarray, " S"]:
    """Return the keys of samples, as of training samples. The later rows of one picture are numbered, to differ."""
    counts: Counter[str] = Counter()
    names: list[str] = []
    for sample in range(len(source)):
        name = source.get_relative_name(sample)
        names.append(f"{name}\0{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return np.array([_make_key(source, sample, names[sample]) for sample in samples], np.uint64)


def _make_key(source: Source, sample: int, name: str) -> int:
    try:
        size = source.count_bytes(sample)
    except (OSError, PictureError):
        size = 0
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).digest()
    return int.from_bytes(digest) << 24 | (size & 2**23 - 1) << 1


def read_digests(source: Source, samples: Sequence[int], read: Bool[np.ndarray, " S"]) -> UInt64[np.ndarray, " S"]:
    """Return the digests of the samples that are to be read; 0 for others, and where the content cannot be read."""
    digests = np.zeros(len(samples), np.uint64)
    for place in track_progress(np.flatnonzero(read).tolist(), "comparing with the samples of training"):
        try:
            digests[place] = source.compute_digest(samples[place])
        except (OSError, PictureError):
            continue
    return digests


def format_changes(changes: Mapping[str, int]) -> str:
    """Return the changes in words, empty if there are none."""
    return ", ".join(f"{count:,} {name}" for name, count in changes.items() if count)


def index_samples(source: Source, samples: Sequence[int]) -> Int64[np.ndarray, " S"]:
    """Return the place of each sample of a source in a list, NEW for those that are not in it."""
    places = np.full(len(source), NEW)
    places[list(samples)] = np.arange(len(samples))
    return places


class SampleLog:
    """The record of a run, to which digests are added as samples are read.

    Args: sources: of training and of validation samples. folds, fold: see SampleRecord.
    """

    def __init__(self, sources: tuple[Source, Source], sides: Sides, folds: int, fold: int) -> None:
        self.folds, self.fold = folds, fold
        self.keys, self.digests, self.past, self.changes = sides[2:]
        self.places = [*map(index_samples, sources, sides[:2])]

    def add(self, held_out: bool, digests: Mapping[int, int]) -> None:
        """Add the digests of samples of one side. A training sample that had another content stays in the record."""
        for sample, digest in digests.items():
            if (place := self.places[held_out][sample]) == NEW:
                continue
            before = self.digests[held_out][place : place + 1]
            if not held_out and before[0] not in (0, digest):
                self.past = self.past.add(SampleRecord(self.keys[False][place : place + 1] & SIZE, before.copy()))
            before[:] = digest

    def shares(self, record: SampleRecord) -> bool:
        """Return whether a sample is recorded with its content, or where that is not known with its name and size."""
        keys, digests = np.concatenate(self.keys), np.concatenate(self.digests)
        unread = np.isin(keys[digests == 0] & ~HELD_OUT, record.keys & ~HELD_OUT)
        return bool(unread.any() or np.isin(digests, record.digests[record.digests > 0]).any())

    def make_record(self) -> SampleRecord:
        record = SampleRecord(np.concatenate(self.keys), np.concatenate(self.digests), self.folds, self.fold)
        return record.add(self.past)

    def count_shared(self) -> int:
        """Return the number of validation samples that were trained on, as far as contents are known."""
        trained = np.concatenate([self.digests[False], self.past.digests])
        return int((np.isin(self.digests[True], trained) & (self.digests[True] > 0)).sum())
