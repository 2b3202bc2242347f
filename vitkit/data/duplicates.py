"""Pictures that are in training and in validation; what a model scores on them is no evidence."""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from vitkit.data.preprocess import PictureError
from vitkit.data.sources.source import Source
from vitkit.support.progress import progress

Pairs = list[tuple[int, int]]
Keys = dict[int, tuple[object, ...]]


def find_shared_samples(train: Source, training: Sequence[int], val: Source, validation: Sequence[int]) -> Pairs:
    """Pairs (training sample, validation sample) of equal content: one for each validation sample that has such.

    Lengths are compared first, then the last bytes of those that agree, then all of them, so that most files are never
    opened. What cannot be read equals nothing.
    """
    ours: Keys = dict.fromkeys(training, ())
    theirs: Keys = dict.fromkeys(validation, ())
    for doing, measure in STAGES:
        ours, theirs = _measured(train, ours, doing, measure), _measured(val, theirs, doing, measure)
        both = set(ours.values()) & set(theirs.values())
        ours, theirs = ({sample: key for sample, key in side.items() if key in both} for side in (ours, theirs))
    partner = {key: sample for sample, key in reversed(ours.items())}
    return [(partner[key], sample) for sample, key in theirs.items()]


def format_shared(pairs: Pairs, train: Source, val: Source, held_out: int) -> str:
    """One line about them, if there are any. Args: held_out: how many pictures validate."""
    ours, theirs = pairs[0]
    are, them = ("is", "it") if len(pairs) == 1 else ("are", "them")
    return (
        f"{len(pairs):,} of {held_out:,} validation pictures {are} also in training, "
        f"such as {train.name(ours)} = {val.name(theirs)}; accuracy on {them} is no evidence"
    )


def _measured(source: Source, keys: Keys, doing: str, measure: Callable[[Source, int], object]) -> Keys:
    found: Keys = {}
    for sample in progress(keys, doing):
        try:
            found[sample] = (*keys[sample], measure(source, sample))
        except (OSError, PictureError):
            continue
    return found


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


STAGES: Iterable[tuple[str, Callable[[Source, int], object]]] = (
    ("looking for duplicates by length", lambda source, sample: source.length(sample)),
    ("looking for duplicates by their ends", lambda source, sample: _digest(source.end(sample))),
    ("looking for duplicates", lambda source, sample: _digest(source.content(sample))),
)
