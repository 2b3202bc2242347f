"""What raw pixels give on the same split; a model that learns anything beats them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64
from PIL import Image

from vitkit.data.image_data import ImageData
from vitkit.data.order import Pick, count_per_class
from vitkit.data.pictures import SKIP, Pictures
from vitkit.data.preprocess import PictureError, Preprocess
from vitkit.data.sources.source import Source
from vitkit.support.extras import require

SIDE = 32  # pixels; larger pictures are scaled down to it, and none is scaled up
LIMIT = 10_000  # training pictures; at 32x32 RGB that is a minute of solving on one core


class Score(NamedTuple):
    name: str
    accuracy: float


def evaluate_baselines(data: ImageData) -> list[Score]:
    """Validation accuracy of the most frequent class, of 5 nearest neighbours and of logistic regression.

    Pixels are scaled to 0..1. Beyond LIMIT training pictures, and for sets of labels, only the first is given.
    Raises: ValueError if scikit-learn is missing.
    """
    scores = [frequencies(data)]
    if len(data.training) > LIMIT or data.source.several:
        return scores
    require("sklearn", "baselines")
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    own = next(min(image.size) for image in readable(data.source, data.training))
    height, width = (min(side, SIDE, own) for side in data.size)
    channels = data.channels
    small = replace(data.preprocess, size=(height, width), mean=(0.0,) * channels, std=(1.0,) * channels)
    train = pixels(data.source, data.training, small)
    held_out = pixels(data.held_out, data.validation, small)
    # The solver stops after 74 steps on digits and 108 on mnist5k; its default limit of 100 warns.
    models = {"5-NN": KNeighborsClassifier(5), "logistic regression": LogisticRegression(max_iter=1000)}
    for name, model in models.items():
        scores.append(Score(f"{name} on pixels", float(model.fit(*train).score(*held_out))))
    return scores


def frequencies(data: ImageData) -> Score:
    """What is reached without looking: the accuracy of the most frequent class, for sets the mean share of a class."""
    classes = range(data.classes)
    held_out = count_per_class([data.held_out.labels[sample] for sample in data.validation], data.classes)
    if data.source.several:
        shares = [one / len(data.validation) for one in held_out if one]
        return Score("class frequencies", sum(shares) / len(shares))
    trained = count_per_class([data.source.labels[sample] for sample in data.training], data.classes)
    return Score("most frequent class", held_out[max(classes, key=trained.__getitem__)] / len(data.validation))


def readable(source: Source, samples: Sequence[int]) -> Iterator[Image.Image]:
    for sample in samples:
        with suppress(PictureError):
            yield source.picture(sample)


def pixels(
    source: Source, samples: Sequence[int], small: Preprocess
) -> tuple[Float32[np.ndarray, "read values"], Int64[np.ndarray, " read"]]:
    """The pixels and the labels of the pictures that can be read."""
    batch = Pictures(source, small, on_error=SKIP)[[Pick(0, sample) for sample in samples]]
    return batch.images.flatten(1).numpy(), batch.labels.numpy()
