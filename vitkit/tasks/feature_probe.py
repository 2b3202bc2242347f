"""What can be read from a model's features while it is pretrained, where there are labels."""

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


class Probing:
    """Accuracy of 20 nearest neighbours and of a linear probe on the mean of a picture's patch tokens.

    Fitted to training pictures that are not varied, asked about those that validate; beside them the same on pixels.

    Args: every: epochs; 0 is never. most: training pictures.
    """

    def __init__(self, every: int, most: int) -> None:
        if every < 0 or most < 1:
            raise ValueError(
                f"probe_every must be at least 0 and probed at least 1, got probe_every={every}, probed={most}"
            )
        self.every, self.most = every, most
        self.wanted = self.due = False
        self.known: list[tuple[Tensor, ...]] | None = None
        self.asked: list[tuple[Tensor, ...]] = []
        self.scores: dict[str, float] = {}  # the last, after `epoch` epochs
        self.baselines: dict[str, float] = {}
        self.epoch: int | None = None

    def adapt(self, data: ImageData) -> None:
        self.wanted = self.every > 0 and data.one_label
        if self.wanted:
            require_package("sklearn", "a probe (model.probe_every=0 asks for none)")

    def start(self, trainer: Trainer) -> None:
        """Before a validation: is it due? The last of a run is, unless patience or time end it unforeseen."""
        fitting = trainer.state.fn == TrainerFn.FITTING
        epochs = trainer.current_epoch + fitting
        last = not fitting or epochs == trainer.max_epochs or 0 <= trainer.max_steps <= trainer.global_step
        self.due = self.wanted and not trainer.sanity_checking and (last or epochs % self.every == 0)
        self.epoch = epochs if self.due else self.epoch
        self.known, self.asked = None, []

    def see(self, model: MAE, data: ImageData, batch: Batch) -> None:
        """A validation batch; with the first, the training pictures too, while the weights are those that validate."""
        if not self.due:
            return
        if self.known is None:
            training = data.unvaried_dataloader(order.draw_samples(data.training, self.most))
            self.known = [part for one in training for part in extract_features(model, data, one)]
        self.asked += extract_features(model, data, batch)

    def end(self, data: ImageData) -> dict[str, float]:
        """Return what to log, equal on all ranks."""
        if not self.due:
            return {}
        known, asked = gather_features(self.known or []), gather_features(self.asked)
        if self.scores:  # those of pixels stay as they are
            known, asked = (part._replace(pixels=part.pixels[:, :0]) for part in (known, asked))
        self.scores |= probes.fit_probes(known, asked)
        self.baselines = {probes.FREQUENT: probes.score_most_frequent(np.array(data.marks), asked.labels)}
        self.known, self.asked = None, []
        return {f"val/{log}": self.scores[f"{probe} on features"] for log, probe in LOGGED.items()}


def extract_features(model: MAE, data: ImageData, batch: Batch) -> list[tuple[Tensor, ...]]:
    """Return indices, features, pixels and labels of a batch, unless nothing of it could be read."""
    if not len(batch.indices):
        return []
    pooled = model.pool(model.features(batch.images.to(model.embed.prefix))).float().cpu()
    pixels = probes.flatten_pixels(batch.images.float(), data.preprocess)
    return [(batch.indices.cpu(), pooled, pixels, batch.labels.cpu())]


def gather_features(parts: list[tuple[Tensor, ...]]) -> probes.ProbeData:
    """Return what all ranks read, in the order of the source."""
    if (columns := gather_in_order(parts)) is None:
        raise ValueError("a probe must have training pictures that can be read, got none of those that it looked at")
    return probes.ProbeData(*(column.numpy() for column in columns[1:]))
