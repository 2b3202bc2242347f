"""What can be read from a model's features while it is pretrained, where there are labels."""

from typing import NamedTuple

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from vitkit.data import order
from vitkit.data.image_data import ImageData
from vitkit.data.pictures import Batch
from vitkit.evaluation import probes
from vitkit.losses.ranks import gathered
from vitkit.models import MAE
from vitkit.support.extras import require

LOGGED = {"knn": probes.KNN, "linear": probes.LINEAR}


class Read(NamedTuple):
    """Places in a source, and what is there: a batch."""

    indices: np.ndarray
    frozen: probes.Frozen


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
        self.known: list[Read] | None = None
        self.asked: list[Read] = []
        self.scores: dict[str, float] = {}  # the last, after `epoch` epochs
        self.epoch: int | None = None

    def adapt(self, data: ImageData) -> None:
        self.wanted = self.every > 0 and data.one_label
        if self.wanted:
            require("sklearn", "a probe (model.probe_every=0 asks for none)")

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
            self.known = [part for one in training for part in read(model, data, one)]
        self.asked += read(model, data, batch)

    def end(self) -> dict[str, float]:
        """What to log, equal on all ranks."""
        if not self.due:
            return {}
        known, asked = together(self.known or []), together(self.asked)
        if self.scores:  # those of pixels stay as they are
            known, asked = (part._replace(pixels=part.pixels[:, :0]) for part in (known, asked))
        self.scores |= probes.fitted(known, asked)
        self.known, self.asked = None, []
        return {f"val/{log}": self.scores[f"{probe} on features"] for log, probe in LOGGED.items()}


def read(model: MAE, data: ImageData, batch: Batch) -> list[Read]:
    """Of a batch, unless nothing of it could be read."""
    if not len(batch.indices):
        return []
    tokens = model.features(batch.images.to(model.embed.prefix))
    pooled = model.pool(tokens).float().cpu().numpy()
    pixels = probes.pixels(batch.images.float(), data.preprocess).numpy()
    return [Read(batch.indices.cpu().numpy(), probes.Frozen(pooled, pixels, batch.labels.cpu().numpy()))]


def together(parts: list[Read]) -> probes.Frozen:
    """What all ranks read, in the order of the source."""
    everyone = gathered(parts)
    if not everyone:
        raise ValueError("a probe must have training pictures that can be read, got none of those that it looked at")
    indices, frozen = zip(*((one.indices, one.frozen[:3]) for one in everyone), strict=True)
    pooled, pixels, labels = (np.concatenate(column) for column in zip(*frozen, strict=True))
    return probes.Frozen(pooled, pixels, labels).of(np.concatenate(indices).argsort().tolist())
