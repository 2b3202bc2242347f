"""Samples that are in training and in validation; what a model scores on them is no evidence."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b

from vitkit.data.preprocess import PictureError
from vitkit.data.sources.source import Source
from vitkit.support.progress import track_progress

Matches = list[tuple[int, int]]
Keys = dict[int, tuple[object, ...]]


def find_shared_samples(train: Source, training: Sequence[int], val: Source, validation: Sequence[int]) -> Matches:
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
    return match_keys(ours, theirs)


def match_keys(training: Mapping[int, Hashable], validation: Mapping[int, Hashable]) -> Matches:
    """Return pairs (training sample, validation sample) of equal keys: the first of the former for each of the latter.

    Args: training, validation: the key of each sample.
    """
    first: dict[Hashable, int] = {}
    for sample, key in training.items():
        first.setdefault(key, sample)
    return [(first[key], sample) for sample, key in validation.items() if key in first]


def format_shared(shared: int, held_out: int, unit: str, example: tuple[str, str]) -> str:
    """Return one line about samples that are in training and in validation.

    Args:
        shared: how many. held_out: how many validate.
        unit: the plural of a sample.
        example: the names of a training sample and of an equal validation sample.
    """
    are, them = ("is", "it") if shared == 1 else ("are", "them")
    return (
        f"{shared:,} of {held_out:,} validation {unit} {are} also in training, such as {example[0]} = {example[1]}; "
        f"the score on {them} is no evidence"
    )


def _measured(source: Source, keys: Keys, doing: str, measure: Callable[[Source, int], object]) -> Keys:
    found: Keys = {}
    for sample in track_progress(keys, doing):
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
