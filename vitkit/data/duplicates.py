"""Find samples that are both in training and in validation: a score on them says nothing about new samples."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b

from vitkit.data.preprocess import PictureError
from vitkit.data.sources.source import Source
from vitkit.support.progress import track_progress

Matches = list[tuple[int, int]]
Keys = dict[int, tuple[object, ...]]


def find_shared_samples(train: Source, training: Sequence[int], val: Source, validation: Sequence[int]) -> Matches:
    """Return pairs (training sample, validation sample) of equal content, one for each such validation sample.

    Lengths are compared first, then the last bytes of samples of equal length, then all bytes, so that most files are
    never opened. A sample that cannot be read has no pair.
    """
    left: Keys = dict.fromkeys(training, ())
    right: Keys = dict.fromkeys(validation, ())
    for title, read_key in STAGES:
        left, right = _extend_keys(train, left, title, read_key), _extend_keys(val, right, title, read_key)
        shared = set(left.values()) & set(right.values())
        left, right = ({sample: key for sample, key in side.items() if key in shared} for side in (left, right))
    return match_keys(left, right)


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


def _extend_keys(source: Source, keys: Keys, title: str, read_key: Callable[[Source, int], object]) -> Keys:
    """Return the keys of samples that can be read, each with one more part."""
    extended: Keys = {}
    for sample in track_progress(keys, title):
        try:
            extended[sample] = (*keys[sample], read_key(source, sample))
        except (OSError, PictureError):
            continue
    return extended


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


STAGES: Iterable[tuple[str, Callable[[Source, int], object]]] = (
    ("looking for duplicates by length", lambda source, sample: source.count_bytes(sample)),
    ("looking for duplicates by their ends", lambda source, sample: _hash(source.read_end(sample))),
    ("looking for duplicates", lambda source, sample: _hash(source.read_content(sample))),
)
