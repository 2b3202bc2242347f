"""Probes on frozen features and on pixels, and the accuracy of the most frequent class.

Letters: N training samples, M held-out samples, D features, P pixel values, k neighbours.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from vitkit.data.order import draw_samples, split_folds
from vitkit.data.preprocess import Preprocess

NEIGHBOURS = 20  # as in DINO, https://arxiv.org/abs/2104.14294, section 4.1
TEMPERATURE = 0.07  # of the weights of neighbours; ibid., appendix F.1
CELLS = 2**26  # cosines in memory at a time: 256 MB
SIDE = 32  # pixels; larger images are scaled down
PROBED = 10_000  # training images of a probe: 10 classes of 32x32 RGB take a minute to fit on one core
FOLDS = 5  # of a cross-validation
KNN, LINEAR, FREQUENT = f"{NEIGHBOURS}-NN", "linear probe", "most frequent class"


class ProbeData(NamedTuple):
    """Frozen features, pixels and labels of images. There may be no features (D = 0) or no pixels (P = 0).

    `random_features` come from the same network with random weights.
    """

    features: Float[np.ndarray, "N D"]
    pixels: UInt8[np.ndarray, "N P"]
    labels: Int64[np.ndarray, " N"]
    random_features: Float[np.ndarray, "N D"] | None = None

    def select(self, samples: Sequence[int]) -> "ProbeData":
        random = None if self.random_features is None else self.random_features[samples]
        return ProbeData(self.features[samples], self.pixels[samples], self.labels[samples], random)


class Neighbours(NamedTuple):
    """The rows of the k nearest neighbours, and their weights exp(cosine / TEMPERATURE)."""

    rows: Int64[Tensor, "M k"]
    weights: Float[Tensor, "M k"]


def find_neighbours(
    training: Float[np.ndarray, "N D"], queries: Float[np.ndarray, "M D"], k: int = NEIGHBOURS
) -> Neighbours:
    """Return the k training samples of the highest cosine similarity to each query."""
    keys, units = (F.normalize(torch.from_numpy(values).float(), dim=1) for values in (training, queries))
    parts = [(part @ keys.T).topk(min(k, len(keys))) for part in units.split(max(CELLS // len(keys), 1))]
    cosines = torch.cat([part.values for part in parts])
    return Neighbours(torch.cat([part.indices for part in parts]), (cosines / TEMPERATURE).exp())


def predict_by_neighbours(
    training: Float[np.ndarray, "N D"],
    labels: Int64[np.ndarray, " N"],
    queries: Float[np.ndarray, "M D"],
    k: int = NEIGHBOURS,
) -> Int64[np.ndarray, " M"]:
    """Return the labels predicted by a weighted vote of the k nearest neighbours."""
    truth, neighbours = torch.from_numpy(labels), find_neighbours(training, queries, k)
    votes = torch.zeros(len(queries), int(truth.max()) + 1)
    return votes.scatter_add_(1, truth[neighbours.rows], neighbours.weights).argmax(dim=1).numpy()


def predict_linearly(
    training: Float[np.ndarray, "N D"], labels: Int64[np.ndarray, " N"], queries: Float[np.ndarray, "M D"]
) -> Int64[np.ndarray, " M"]:
    """Return the labels predicted by logistic regression on standardised features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) == 1:  # nothing to separate, which the solver refuses
        return np.full(len(queries), labels[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stops after 1,000 steps is as good as it gets
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(training, labels).predict(queries)


PROBES = {KNN: predict_by_neighbours, LINEAR: predict_linearly}


Predictions = dict[str, Int64[np.ndarray, " M"]]  # of held-out samples, by the name of a probe or baseline


class Scores(NamedTuple):
    """The accuracy, and its mean over the classes of held-out samples, by the name of a probe or baseline."""

    accuracy: dict[str, float]
    macro_recall: dict[str, float]


def fit_probes(training: ProbeData, held_out: ProbeData, kinds: Sequence[str] = (KNN, LINEAR)) -> Predictions:
    """Fit probes, and return their predictions for held-out samples. Args: kinds: names in PROBES."""
    return {
        f"{kind} on {name}": PROBES[kind](inputs, training.labels, queries)
        for name, inputs, queries in iterate_inputs(training, held_out)
        for kind in kinds
    }


def score_predictions(predictions: Predictions, labels: Int64[np.ndarray, " M"]) -> Scores:
    correct = {name: predicted == labels for name, predicted in predictions.items()}
    classes = [labels == label for label in np.unique(labels)]
    return Scores(
        {name: float(hits.mean()) for name, hits in correct.items()},
        {name: float(np.mean([hits[members].mean() for members in classes])) for name, hits in correct.items()},
    )


def iterate_inputs(training: ProbeData, held_out: ProbeData) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name of each input of probes that is there, and its values for both parts."""
    if training.features.shape[1]:
        yield "features", training.features, held_out.features
    if training.random_features is not None and held_out.random_features is not None:
        yield "features of a random encoder", training.random_features, held_out.random_features
    if training.pixels.shape[1]:
        yield "pixels", training.pixels.astype(np.float32) / 255, held_out.pixels.astype(np.float32) / 255


def predict_most_frequent(training: Sequence[int] | np.ndarray, count: int) -> Predictions:
    """Return the most frequent training class for each of `count` samples; a tie goes to the first class."""
    return {FREQUENT: np.full(count, np.bincount(np.asarray(training)).argmax())}


class ProbeSplit(NamedTuple):
    """The labels of all training samples, the training samples that probes are fitted to, and the held-out samples."""

    labels: Int64[np.ndarray, " N"]
    training: ProbeData
    held_out: ProbeData


def score_splits(splits: Iterable[ProbeSplit], kinds: Sequence[str] = (KNN, LINEAR)) -> Scores:
    """Return the scores of the most frequent class and of probes over the held-out samples of all splits."""
    parts: list[Predictions] = []
    truth: list[np.ndarray] = []
    for labels, training, held_out in splits:
        frequent = predict_most_frequent(labels, len(held_out.labels))
        parts.append(frequent | fit_probes(training, held_out, kinds))
        truth.append(held_out.labels)
    predictions = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return score_predictions(predictions, np.concatenate(truth))


def list_better_baselines(metric: str, value: float, baselines: Mapping[str, float]) -> list[str]:
    """Return a sentence for each baseline that is better than the value of a metric."""
    return [
        f"{metric}: worse than {name}, {value:.2%} against {score:.2%}"
        for name, score in baselines.items()
        if score > value
    ]


def list_inputs_above_features(accuracy: Mapping[str, float]) -> list[str]:
    """Return the sentences of `list_better_baselines` for each probe on features, against the same on other inputs."""
    better: list[str] = []
    for kind in PROBES:
        if (name := f"{kind} on features") in accuracy:
            others = {other: score for other, score in accuracy.items() if other.startswith(f"{kind} on")}
            better += list_better_baselines(name, accuracy[name], others)
    return better


def split_cross_validation(data: ProbeData, most: int) -> Iterator[ProbeSplit]:
    """Yield the FOLDS splits of a cross-validation, each with at most `most` samples to fit probes to.

    Raises: ValueError if a class has fewer samples than there are folds.
    """
    present, labels = np.unique(data.labels, return_inverse=True)
    for fold in range(FOLDS):
        inside, outside = split_folds(labels.tolist(), [str(label) for label in present], FOLDS, fold)
        yield ProbeSplit(data.labels[inside], data.select(draw_samples(inside, most)), data.select(outside))


def flatten_pixels(images: Float[Tensor, "B C h w"], preprocess: Preprocess) -> UInt8[Tensor, "B P"]:
    """Return the bytes of preprocessed images, scaled down to at most SIDE on a side."""
    height, width = (min(side, SIDE) for side in preprocess.size)
    small = F.interpolate(preprocess.denormalise(images).cpu().float(), (height, width), mode="area")
    return small.round().to(torch.uint8).flatten(1)
