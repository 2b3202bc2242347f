"""What pixels and words give together without learning. N pictures, W words."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.data.order import draw_samples
from vitkit.data.pairs import Pairs
from vitkit.evaluation.baselines import read_pixels
from vitkit.evaluation.probes import PROBED, find_neighbours
from vitkit.evaluation.recall import Retrieval, pair_captions, retrieve
from vitkit.support.extras import require_package

WORDS = 4096  # the most frequent of the training captions
WORD = r"\w+|[^\w\s]"  # of one letter too, and every sign: a caption is never without words


def retrieve_by_words(data: Pairs) -> Retrieval:
    """Retrieve among held-out images and captions, where an image has the words of the training images like it.

    Its row is the mean of the bags of words (tf-idf, of all their captions) of its nearest training images, weighted as
    `find_neighbours` weighs them, by their pixels; a caption's row is its own bag. Nothing is fitted but the weights of
    words. Beyond PROBED training images so many are drawn. Raises: ValueError if scikit-learn is missing.
    """
    require_package("sklearn", "baselines")
    from sklearn.feature_extraction.text import TfidfVectorizer

    known, pixels = read_pixels(data, data.source, draw_samples(data.training, PROBED))
    indices, asked = read_pixels(data, data.held_out, data.validation)
    weights = TfidfVectorizer(max_features=WORDS, token_pattern=WORD)
    bags = rows(weights.fit_transform([" ".join(data.captioned.captions[index]) for index in known]))
    near = find_neighbours(pixels.pixels.astype(np.float32), asked.pixels.astype(np.float32))
    captions, pairs = pair_captions([data.held_out_captioned.captions[index] for index in indices])
    images = torch.nn.functional.normalize(
        torch.stack([weight @ bags[row] for row, weight in zip(*near, strict=True)]), dim=1
    )
    return retrieve(indices, images, captions, rows(weights.transform(captions)), pairs)


def rows(sparse: Any) -> Float[Tensor, "rows W"]:
    return torch.from_numpy(sparse.toarray()).float()
