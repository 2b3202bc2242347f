"""Image-text retrieval by nearest pixels and bags of words: a baseline without a trained model. W words."""

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

WORDS = 4096  # the most frequent ones of the training captions
WORD = r"\w+|[^\w\s]"  # single letters and signs count too, so that no caption is without words


def retrieve_by_words(data: Pairs) -> Retrieval:
    """Retrieve among held-out images and captions, with bags of words (tf-idf) as embeddings.

    The embedding of an image is the mean over the captions of the training images whose pixels are nearest, with the
    weights of `find_neighbours`. The embedding of a caption is its own bag. Only the weights of words are fitted. At
    most PROBED training images are drawn. Raises: ValueError if scikit-learn is missing.
    """
    require_package("sklearn", "baselines")
    from sklearn.feature_extraction.text import TfidfVectorizer

    train_indices, train_data = read_pixels(data, data.source, draw_samples(data.training, PROBED))
    indices, held_out = read_pixels(data, data.held_out, data.validation)
    weights = TfidfVectorizer(max_features=WORDS, token_pattern=WORD)
    bags = to_dense(weights.fit_transform([" ".join(data.captioned.captions[index]) for index in train_indices]))
    neighbours = find_neighbours(train_data.pixels.astype(np.float32), held_out.pixels.astype(np.float32))
    captions, pairs = pair_captions([data.held_out_captioned.captions[index] for index in indices])
    images = torch.nn.functional.normalize(
        torch.stack([weight @ bags[row] for row, weight in zip(*neighbours, strict=True)]), dim=1
    )
    return retrieve(indices, images, captions, to_dense(weights.transform(captions)), pairs)


def to_dense(sparse: Any) -> Float[Tensor, "rows W"]:
    return torch.from_numpy(sparse.toarray()).float()
