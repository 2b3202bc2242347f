"""Pretraining by reconstruction (https://arxiv.org/abs/2111.06377). Letters: B batch, h w the grid of N patches."""

import math
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int64
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from vitkit.data.data_module import Data
from vitkit.data.image_data import ImageData, get_images
from vitkit.data.order import Pick
from vitkit.data.pictures import Batch
from vitkit.evaluation.baselines import evaluate_baselines
from vitkit.evaluation.explained_variance import Tally, draw_mask_noise, score_tally, tally_batch
from vitkit.inference.triptychs import reconstructions
from vitkit.losses import squared_error
from vitkit.losses.ranks import gathered
from vitkit.models import MAE
from vitkit.support.files import replace_file
from vitkit.tasks.batch_faults import explain_equal
from vitkit.tasks.feature_probe import Probing
from vitkit.tasks.task import Guess, Loss, Outcome, Task

SHOWN = 8  # pictures in a drawing
LEARNED = 0.5  # pretrain_mae_mnist5k comes to this share of the deviation of a batch in 280 steps


class Reconstruct(Task):
    """The squared error of what an MAE takes hidden patches for. No labels are needed.

    Validates over every sample of all ranks, each behind a mask of its own that is always the same: the loss, and how
    much of the squared deviation of the hidden patches, each from its mean over these pictures, is explained.

    Args:
        probe_every: epochs from one look at the features to the next, and at the end: what 20 nearest neighbours and a
            linear probe make of them. 0 is never, as where there are no labels.
        probed: training pictures that these are fitted to, at most.
        pictures_every: optimiser steps from one drawing of some validation pictures to the next, and at the end.
            0 is never.
        task: the arguments of Task.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        probe_every: int = 10,
        probed: int = 2000,
        pictures_every: int = 1000,
        **task: Any,
    ) -> None:
        super().__init__(model, **task)
        if not isinstance(model, MAE):
            raise ValueError(f"model must be a vitkit.models.MAE, got {type(model).__name__}")
        if pictures_every < 0:
            raise ValueError(f"pictures_every must be at least 0, got pictures_every={pictures_every}")
        self.probing = Probing(probe_every, probed)
        self.pictures_every = pictures_every
        self.last_drawing = 0  # the optimiser step of the last drawing
        self.tallies: list[Tally] = []
        self.deviation = 0.0

    @property
    def mae(self) -> MAE:
        return cast(MAE, self.model)

    @property
    def images(self) -> ImageData:
        return cast(ImageData, self.data)

    @property
    def score(self) -> str:
        return "val/explained"

    @property
    def standard_names(self) -> Mapping[str, str]:
        return {"explained": "explained_variance"}

    def adapt(self, data: Data) -> None:
        if len(data.validation) < 2:
            raise ValueError(f"val must hold at least two pictures, got {len(data.validation)}")
        self.probing.adapt(get_images(data, type(self).__name__, ("images",)))

    def loss(self, batch: Batch) -> Loss:
        found = self.mae(batch.images)
        losses = squared_error(found.pixels, self.mae.target(batch.images, found.hidden))
        return Loss(losses.sum(), len(losses))

    def goal(self, batch: Batch) -> float:
        """Return LEARNED of the deviation of the patches: pixels are never met exactly."""
        return LEARNED * self.guess(batch).loss

    def guess(self, batch: Batch) -> Guess:
        patches = math.prod(self.mae.grid(batch.images.shape[2:]))
        everything = torch.arange(patches, device=batch.images.device).expand(len(batch.images), -1)
        target = self.mae.target(batch.images, everything)
        loss = (target - target.mean(0)).square().mean().item()
        return Guess(loss, f"{loss:.4g}, that of each patch's mean over the pictures")

    def find_fault(self, batch: Batch, data: Data) -> str | None:
        return explain_equal(batch.images)

    def noise(self, indices: Int64[Tensor, " B"]) -> Float[Tensor, "B h w"]:
        """Return what hides the patches of validation samples, in every validation and on any rank."""
        return draw_mask_noise(self.mae, indices, self.images.size)

    def on_validation_epoch_start(self) -> None:
        self.tallies = []
        self.probing.start(self.trainer)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.probing.see(self.mae, self.images, batch)
        if not len(batch.indices):  # nothing of it could be read
            return
        tally = tally_batch(self.mae, batch.images, batch.indices)
        self.tallies = [reduce(Tally.add, [*self.tallies, tally])]

    def on_validation_epoch_end(self) -> None:
        tallies = gathered(self.tallies)
        if self.trainer.sanity_checking:  # of two batches, which may hold nothing
            return
        if not tallies:
            raise ValueError("val must hold a picture that can be read, got none")
        tally = reduce(Tally.add, tallies)
        scores = score_tally(tally, "val")
        self.validated, self.deviation = int(tally.images), scores["mean_of_patches"]
        self.metrics = {"val/loss": scores["loss"], **self.rename(scores)}
        self.metrics |= self.probing.end(self.images)
        # Equal on all ranks: max is exact.
        self.log_dict(self.metrics, prog_bar=True, sync_dist=True, reduce_fx="max")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = self.global_step
        if self.pictures_every and step % self.pictures_every == 0 and step != self.last_drawing:
            self.last_drawing = step
            if self.trainer.is_global_zero:
                self.draw(Path(self.trainer.default_root_dir))

    @torch.no_grad()
    def draw(self, run: Path) -> None:
        """Original, masked and reconstruction of some validation pictures, as a file and for TensorBoard."""
        data, training = self.images, self.training
        spread = data.validation[:: max(1, len(data.validation) // SHOWN)][:SHOWN]  # they may be sorted by class
        batch = data.validation_pictures[[Pick(0, sample) for sample in spread]]
        if not len(batch.indices):
            return
        self.eval()
        images = batch.images.to(self.device)
        picture = reconstructions(self.mae, data.preprocess, images, self.noise(batch.indices))
        self.train(training)
        path = run / "reconstructions" / f"step-{self.global_step:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as beside:
            picture.save(beside, "png")
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                pixels = np.asarray(picture.convert("RGB"))
                logger.experiment.add_image("reconstructions", pixels, self.global_step, dataformats="HWC")

    def outcome(self, run: Path, latest: str, best: float, baselines: bool) -> Outcome:
        if self.pictures_every:
            self.draw(run)
        probes, beside = self.probing.scores, self.probing.baselines
        if baselines and not probes:
            beside = evaluate_baselines(self.images)
        errors = {latest: self.metrics["val/loss"], "each patch's mean over the pictures": self.deviation}
        shares = {
            "explained": self.metrics["val/explained"],
            "the best epoch, picked in hindsight": best,
            **probes,
            **beside,
        }
        pictured = f"{run}/reconstructions shows some; " if self.pictures_every else ""
        tuned = f"vitkit fit --config configs/finetune_folder.yaml --pretrained {run}/model --data.train PICTURES"
        return Outcome(
            f"squared error of hidden patches, {self.validated:,} pictures held out",
            [(name, f"{error:.4f}") for name, error in errors.items()]
            + [(name, f"{share:.2%}") for name, share in shares.items()],
            {
                "mean_of_patches": self.deviation,
                "probed_after_epochs": self.probing.epoch,
                "probes": probes,
                "baselines": beside,
            },
            f"{pictured}vitkit reconstruct {run}/model PICTURES\n{tuned}",
        )
