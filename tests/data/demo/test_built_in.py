import pickle

import numpy as np
import pytest
from PIL import features

from vitkit.data.demo import emoji
from vitkit.data.order import count_per_class, split_folds
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import Source


def test_digits_are_grey_bytes_with_balanced_labels():
    source = open_source("digits")
    assert len(source) == 1797
    assert source.class_names == tuple("0123456789")
    image = source.read_image(0)
    assert (image.mode, image.size, image.getextrema()) == ("L", (8, 8), (0, 239))
    assert source.labels[0] == 0
    assert source.get_name(7) == "digits[7]"


def test_mnist5k_has_500_digits_a_class():
    source = open_source("mnist5k")
    assert np.bincount(source.labels).tolist() == [500] * 10
    assert source.read_image(4999).size == (28, 28)


def test_long_tail_falls_from_400_to_10() -> None:
    source = open_source("mnist5k-longtail")
    assert np.bincount(np.array(source.labels)).tolist() == [400, 265, 176, 117, 78, 52, 34, 23, 15, 10]
    assert np.bincount(np.array(open_source("mnist5k-test").labels)).tolist() == [100] * 10


def test_few_digits_are_training_samples_of_fold_0() -> None:
    few, whole = open_source("mnist5k-few"), open_source("mnist5k")
    assert np.bincount(np.array(few.labels)).tolist() == [10] * 10
    training = {whole.read_content(sample) for sample in split_folds(whole.labels, whole.class_names, 5, 0)[0]}
    assert {few.read_content(index) for index in range(100)} <= training


raqm = pytest.mark.skipif(
    not features.check("raqm"), reason="without raqm Pillow joins no letters, and flags are letters"
)


@pytest.fixture(scope="module", params=["openmoji", "openmoji-words"])
def drawn(request: pytest.FixtureRequest) -> tuple[str, Source]:
    return request.param, open_source(request.param)


@raqm
def test_emoji_label_counts_equal_the_documentation(drawn: tuple[str, Source]) -> None:
    name, source = drawn
    counts = dict(zip(source.class_names, count_per_class(source.labels, len(source.class_names)), strict=True))
    if name == "openmoji":
        assert not source.multilabel
        expected = {"flag": 263, "people": 236, "face": 120, "button": 58, "hand": 35, "family": 29, "clock": 27}
        assert counts == expected | {"heart": 24}
    else:
        assert source.multilabel
        assert (len(source), source.labels.count(())) == (1896, 1049)
        assert counts == dict(arrow=23, boy=16, button=58, clock=27, face=121, family=29, flag=267, girl=16, hand=35,
                              heart=31, japanese=21, man=104, moon=15, person=59, smiling=15, square=17, wheelchair=15,
                              woman=110)  # fmt: skip
    assert all(len(part) for part in split_folds(source.labels, source.class_names, 5, 0))


@raqm
def test_emoji_are_distinct_pictures_in_colour(drawn: tuple[str, Source]) -> None:
    _, source = drawn
    assert len({source.read_content(index) for index in range(len(source))}) == len(source)
    image = source.read_image(5)
    assert (image.mode, image.size) == ("RGB", (80, 80))
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert pickle.loads(pickle.dumps(source)).read_content(5) == source.read_content(5)


def test_emoji_class_is_the_first_in_its_name() -> None:
    assert emoji._split_name("\N{PILE OF POO}", "pile of poo") == {"pile", "of", "poo"}
    germany = "\N{REGIONAL INDICATOR SYMBOL LETTER D}\N{REGIONAL INDICATOR SYMBOL LETTER E}"
    assert emoji.find_emoji_kind(emoji._split_name(germany, "germany")) == "flag"
    assert emoji.find_emoji_kind({"family", "man", "boy"}) == "family"
    assert emoji.find_emoji_kind({"woman", "face"}) == "face"
    assert emoji.find_emoji_kind({"folding", "hand", "fan"}) is None
