from collections.abc import Sequence
from typing import cast

import pytest
import torch
from torch.testing import assert_close

from vitkit.data.pairs import Pairs
from vitkit.evaluation.bag_of_words import bag_of_words


def test_a_picture_has_the_words_of_the_training_pictures_that_look_like_it() -> None:
    data = Pairs("digits", size=(8, 8), mean=(0.5,), std=(0.5,))
    data.training, data.validation = data.training[:300], data.validation[:40]
    bags = bag_of_words(data)
    names = [data.held_out_captioned.captions[index][0] for index in bags.indices]
    assert bags.indices == data.validation and bags.texts == tuple(dict.fromkeys(names))
    nearest = (bags.pictures @ bags.captions.T).argmax(1)
    right = sum(bags.texts[place] == name for place, name in zip(nearest.tolist(), names, strict=True))
    assert right >= 34  # neighbours know a digit
    assert_close(bags.pictures.norm(dim=1), torch.ones(40))
    again = bag_of_words(data)
    assert torch.equal(again.pictures, bags.pictures) and torch.equal(again.captions, bags.captions)


def test_a_caption_of_unknown_words_is_like_nothing() -> None:
    data = Pairs("digits", size=(8, 8), mean=(0.5,), std=(0.5,))
    numbers = [data.captioned.captions[sample][0] for sample in range(len(data.source))]
    data.training = [sample for sample in range(len(numbers)) if numbers[sample] != "seven"][:200]
    data.validation = [numbers.index("seven"), numbers.index("two")]
    bags = bag_of_words(data)
    assert not bags.captions[bags.texts.index("seven")].any() and bags.captions[bags.texts.index("two")].any()


@pytest.mark.parametrize("captions", [("a", "b"), ("type 1", "type 2"), ("!", "?")])
def test_a_letter_a_digit_and_a_sign_are_words(captions: Sequence[str]) -> None:
    data = Pairs("digits", size=(8, 8), mean=(0.5,), std=(0.5,))
    own = cast(list[tuple[str, ...]], data.captioned.captions)
    own[:] = [(captions[index % 2],) for index in range(len(own))]
    data.training, data.validation = data.training[:40], data.validation[:20]
    bags = bag_of_words(data)
    assert_close(bags.captions.norm(dim=1), torch.ones(2))
    assert not torch.equal(bags.captions[0], bags.captions[1])
