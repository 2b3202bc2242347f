from collections.abc import Sequence
from typing import cast

import pytest
import torch
from torch.testing import assert_close

from vitkit.data.pairs import Pairs
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.bag_of_words import retrieve_by_words


def test_image_has_the_words_of_its_nearest_training_images() -> None:
    data = Pairs("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), tokenizer=Tokenizer())
    data.training, data.validation = data.training[:300], data.validation[:40]
    retrieval = retrieve_by_words(data)
    names = [data.held_out_captioned.captions[index][0] for index in retrieval.indices]
    assert retrieval.indices == data.validation and retrieval.captions == tuple(dict.fromkeys(names))
    nearest = (retrieval.images @ retrieval.texts.T).argmax(1)
    right = sum(retrieval.captions[place] == name for place, name in zip(nearest.tolist(), names, strict=True))
    assert right >= 34  # neighbours know a digit
    assert_close(retrieval.images.norm(dim=1), torch.ones(40))
    second = retrieve_by_words(data)
    assert torch.equal(second.images, retrieval.images) and torch.equal(second.texts, retrieval.texts)


def test_caption_of_unknown_words_has_a_zero_embedding() -> None:
    data = Pairs("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), tokenizer=Tokenizer())
    numbers = [data.captioned.captions[sample][0] for sample in range(len(data.source))]
    data.training = [sample for sample in range(len(numbers)) if numbers[sample] != "seven"][:200]
    data.validation = [numbers.index("seven"), numbers.index("two")]
    retrieval = retrieve_by_words(data)
    embeddings = dict(zip(retrieval.captions, retrieval.texts, strict=True))
    assert not embeddings["seven"].any() and embeddings["two"].any()


@pytest.mark.parametrize("captions", [("a", "b"), ("type 1", "type 2"), ("!", "?")])
def test_single_letters_digits_and_signs_are_words(captions: Sequence[str]) -> None:
    data = Pairs("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), tokenizer=Tokenizer())
    all_captions = cast(list[tuple[str, ...]], data.captioned.captions)
    all_captions[:] = [(captions[index % 2],) for index in range(len(all_captions))]
    data.training, data.validation = data.training[:40], data.validation[:20]
    retrieval = retrieve_by_words(data)
    assert_close(retrieval.texts.norm(dim=1), torch.ones(2))
    assert not torch.equal(retrieval.texts[0], retrieval.texts[1])
