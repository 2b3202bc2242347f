"""Probes of an MAE's features during pretraining on labelled data."""

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from vitkit.data import order
from vitkit.data.image_data import ImageData
from vitkit.data.pictures import Batch
from vitkit.evaluation import probes
from vitkit.losses.ranks import gather_in_order
from vitkit.models import MAE
from vitkit.support.extras import require_package

LOGGED = {"knn": probes.KNN, "linear": probes.LINEAR}


class FeatureProbe:
    """The validation accuracy of 20-NN and a linear probe on mean patch tokens, and on pixels.

    Probes are fitted to training images without augmentation.

    Args: every: epochs between probes; 0 for none. most: training images.
    """

    def __init__(self, every: int, most: int) -> None:
        if every < 0 or most < 1:
            raise ValueError(
                f"probe_every must be at least 0 and probed at least 1, got probe_every={every}, probed={most}"
            )
        self.every, self.most = every, most
        self.enabled = self.due = False
        self.training: list[tuple[Tensor, ...]] | None = None
        self.validation: list[tuple[Tensor, ...]] = []
        self.scores: dict[str, float] = {}  # the last ones, after `epoch` epochs
        self.baselines: dict[str, float] = {}
        self.epoch: int | None = None
        self.fitted = 0  # training images

    def adapt(self, data: ImageData) -> None:
        self.enabled = self.every > 0 and data.one_label
        if self.enabled:
            require_package("sklearn", "a probe (model.probe_every=0 for none)")

    def start_validation(self, trainer: Trainer) -> None:
        """Decide whether this validation is probed. The last one of a fit is, unless patience or time ends it, and any
        after a fit.
        """
        fitting = trainer.state.fn == TrainerFn.FITTING
        epochs = trainer.fit_loop.epoch_progress.current.ready
        last = not fitting or epochs == trainer.max_epochs or 0 <= trainer.max_steps <= trainer.global_step
        self.due = self.enabled and not trainer.sanity_checking and (last or epochs % self.every == 0)
        self.epoch = epochs if self.due else self.epoch
        self.training, self.validation = None, []

    def add_batch(self, model: MAE, data: ImageData, batch: Batch) -> None:
        """Add a validation batch. The first also adds the training images, with the weights that are validated."""
        if not self.due:
            return
        if self.training is None:
            batches = data.make_unaugmented_loader(order.draw_samples(data.training, self.most))
            self.training = [row for part in batches for row in extract_features(model, data, part)]
        self.validation += extract_features(model, data, batch)

    def finish_validation(self, data: ImageData) -> dict[str, float]:
        """Fit the probes, and return the accuracies to log, equal on all ranks."""
        if not self.due:
            return {}
        training, validation = gather_features(self.training or []), gather_features(self.validation)
        self.fitted = len(training.labels)
        if self.scores:  # the scores of pixels do not change
            training, validation = (part._replace(pixels=part.pixels[:, :0]) for part in (training, validation))
        self.scores |= probes.score_predictions(probes.fit_probes(training, validation), validation.labels).accuracy
        frequent = probes.predict_most_frequent(np.array(data.training_labels), len(validation.labels))
        self.baselines = probes.score_predictions(frequent, validation.labels).accuracy
        self.training, self.validation = None, []
        return {f"val/{log}": self.scores[f"{probe} on features"] for log, probe in LOGGED.items()}


def extract_features(model: MAE, data: ImageData, batch: Batch) -> list[tuple[Tensor, ...]]:
    """Return the indices, features, pixels and labels of a batch; an empty list if no sample was readable."""
    if not len(batch.indices):
        return []
    pooled = model.pool(model.features(batch.images.to(model.embed.prefix))).float().cpu()
    pixels = probes.flatten_pixels(batch.images.float(), data.preprocess)
    return [(batch.indices.cpu(), pooled, pixels, batch.labels.cpu())]


def gather_features(parts: list[tuple[Tensor, ...]]) -> probes.ProbeData:
    """Return the samples of all ranks in the order of the source."""
    if (columns := gather_in_order(parts)) is None:
        raise ValueError("a probe must have training pictures that can be read, got none")
    return probes.ProbeData(*(column.numpy() for column in columns[1:]))
