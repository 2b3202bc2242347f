from collections.abc import Sequence
from typing import cast

import pytest
import torch
from torch.testing import assert_close

from vitkit.data.pairs import Pairs
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.bag_of_words import retrieve_by_words


def test_a_picture_has_the_words_of_the_training_pictures_that_look_like_it() -> None:
    data = Pairs("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), tokenizer=Tokenizer())
    data.training, data.validation = data.training[:300], data.validation[:40]
    found = retrieve_by_words(data)
    names = [data.held_out_captioned.captions[index][0] for index in found.indices]
    assert found.indices == data.validation and found.captions == tuple(dict.fromkeys(names))
    nearest = (found.images @ found.texts.T).argmax(1)
    right = sum(found.captions[place] == name for place, name in zip(nearest.tolist(), names, strict=True))
    assert right >= 34  # neighbours know a digit
    assert_close(found.images.norm(dim=1), torch.ones(40))
    again = retrieve_by_words(data)
    assert torch.equal(again.images, found.images) and torch.equal(again.texts, found.texts)


def test_a_caption_of_unknown_words_is_like_nothing() -> None:
    data = Pairs("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), tokenizer=Tokenizer())
    numbers = [data.captioned.captions[sample][0] for sample in range(len(data.source))]
    data.training = [sample for sample in range(len(numbers)) if numbers[sample] != "seven"][:200]
    data.validation = [numbers.index("seven"), numbers.index("two")]
    found = retrieve_by_words(data)
    assert not found.texts[found.captions.index("seven")].any() and found.texts[found.captions.index("two")].any()


@pytest.mark.parametrize("captions", [("a", "b"), ("type 1", "type 2"), ("!", "?")])
def test_a_letter_a_digit_and_a_sign_are_words(captions: Sequence[str]) -> None:
    data = Pairs("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), tokenizer=Tokenizer())
    own = cast(list[tuple[str, ...]], data.captioned.captions)
    own[:] = [(captions[index % 2],) for index in range(len(own))]
    data.training, data.validation = data.training[:40], data.validation[:20]
    found = retrieve_by_words(data)
    assert_close(found.texts.norm(dim=1), torch.ones(2))
    assert not torch.equal(found.texts[0], found.texts[1])
