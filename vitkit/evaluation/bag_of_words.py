"""What pixels and words give together without learning. N pictures, W words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.data.order import Pick, draw_samples
from vitkit.data.pairs import Pairs
from vitkit.data.pictures import SKIP, Pictures
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Source
from vitkit.evaluation.baselines import LIMIT, SIDE
from vitkit.evaluation.recall import Retrieval, pair_captions, retrieve
from vitkit.support.extras import require

NEIGHBOURS = 10
WORDS = 4096  # the most frequent of the training captions
WORD = r"\w+|[^\w\s]"  # of one letter too, and every sign: a caption is never without words


def retrieve_by_words(data: Pairs) -> Retrieval:
    """Retrieve among held-out images and captions, where an image has the words of the training images like it.

    Its row is the mean of the bags of words (tf-idf, of all their captions) of its 10 nearest training pictures, by the
    distance of their pixels at 32 x 32 at most; a caption's row is its own bag. Nothing is fitted but the weights of
    words. Beyond LIMIT training pictures so many are drawn. Raises: ValueError if scikit-learn is missing.
    """
    require("sklearn", "baselines")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.neighbors import NearestNeighbors

    height, width = (min(side, SIDE) for side in data.size)
    flat = (0.0,) * data.channels, (1.0,) * data.channels
    small = replace(data.preprocess, size=(height, width), mean=flat[0], std=flat[1])
    known, pixels = read(data.source, draw_samples(data.training, LIMIT), small)
    indices, asked = read(data.held_out, data.validation, small)
    weights = TfidfVectorizer(max_features=WORDS, token_pattern=WORD)
    bags = rows(weights.fit_transform([" ".join(data.captioned.captions[index]) for index in known]))
    neighbours = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(known))).fit(pixels.numpy())
    near = torch.from_numpy(neighbours.kneighbors(asked.numpy(), return_distance=False))
    captions, pairs = pair_captions([data.held_out_captioned.captions[index] for index in indices])
    images = torch.nn.functional.normalize(torch.stack([bags[row].mean(0) for row in near]), dim=1)
    return retrieve(indices, images, captions, rows(weights.transform(captions)), pairs)


def rows(sparse: Any) -> Float[Tensor, "rows W"]:
    return torch.from_numpy(sparse.toarray()).float()


def read(source: Source, samples: Sequence[int], small: Preprocess) -> tuple[list[int], Float[Tensor, "N P"]]:
    """The pictures that can be read, and their pixels."""
    batch = Pictures(source, small, on_error=SKIP)[[Pick(0, sample) for sample in samples]]
    return batch.indices.tolist(), batch.images.flatten(1)
