"""What raw pixels give on the same split; a model that learns anything beats them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from vitkit.data.images import Images
from vitkit.data.sources import Source, require
from vitkit.preprocess import Preprocess

SIDE = 32  # pixels; larger pictures are scaled down to it, and none is scaled up
LIMIT = 10_000  # training pictures; at 32x32 RGB that is a minute of solving on one core


class Score(NamedTuple):
    name: str
    accuracy: float


def compare(data: Images) -> list[Score]:
    """Validation accuracy of the most frequent class, of 5 nearest neighbours and of logistic regression.

    Pixels are scaled to 0..1. Beyond LIMIT training pictures only the first is given.
    Raises: ValueError if scikit-learn is missing.
    """
    truth = np.array(data.held_out.labels)[data.validation]
    labels = np.array(data.source.labels)[data.training]
    scores = [Score("most frequent class", float((truth == np.bincount(labels).argmax()).mean()))]
    if len(labels) > LIMIT:
        return scores
    require("sklearn", "baselines")
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    own = min(data.source.picture(data.training[0]).size)
    height, width = (min(side, SIDE, own) for side in data.size)
    small = replace(data.preprocess, size=(height, width))
    train, held_out = pixels(data.source, data.training, small), pixels(data.held_out, data.validation, small)
    # The solver stops after 74 steps on digits and 108 on mnist5k; its default limit of 100 warns.
    models = {"5-NN": KNeighborsClassifier(5), "logistic regression": LogisticRegression(max_iter=1000)}
    for name, model in models.items():
        scores.append(Score(f"{name} on pixels", float(model.fit(train, labels).score(held_out, truth))))
    return scores


def pixels(source: Source, samples: Sequence[int], preprocess: Preprocess) -> Float32[np.ndarray, "samples values"]:
    images = [preprocess.resize(preprocess.convert(source.picture(sample))) for sample in samples]
    return preprocess.pixels(images).flatten(1).numpy().astype(np.float32) / 255
