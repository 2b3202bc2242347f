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
from vitkit.evaluation.explained_variance import TRUE_STATISTICS, Tally, draw_mask_noise, score_tally, tally_batch
from vitkit.evaluation.probes import list_better_baselines, list_inputs_above_features
from vitkit.inference.reconstruction_sheets import draw_reconstructions
from vitkit.losses import squared_error
from vitkit.losses.ranks import gather_objects
from vitkit.models import MAE
from vitkit.support.errors import format_count
from vitkit.support.files import replace_file
from vitkit.tasks.batch_faults import describe_equal_images
from vitkit.tasks.feature_probe import FeatureProbe
from vitkit.tasks.task import Chance, Loss, RunSummary, Task

SHOWN = 8  # images in a figure
LEARNED = 0.5  # pretrain_mae_mnist5k reaches this share of the variance of a batch in 280 steps


class Reconstruct(Task):
    """Pretraining of an MAE with the squared error of hidden patches. No labels are needed.

    Validation covers every sample of all ranks, each with a fixed mask of its own: the loss, and the explained variance
    of hidden patches.

    Args:
        probe_every: epochs between probes of the features (20-NN and linear), which also run at the end; 0 for none.
            Without labels there are none.
        probed: the most training images that probes are fitted to.
        pictures_every: optimiser steps between figures of reconstructions, of which the last is at the end; 0 for none.
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
        self.probe = FeatureProbe(probe_every, probed)
        self.pictures_every = pictures_every
        self.last_figure = 0  # the optimiser step of the last figure
        self.tallies: list[Tally] = []
        self.patch_variance = 0.0

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
        self.probe.adapt(get_images(data, type(self).__name__, ("images",)))

    def compute_loss(self, batch: Batch) -> Loss:
        reconstruction = self.mae(batch.images)
        target = self.mae.make_target(batch.images, reconstruction.hidden)
        losses = squared_error(reconstruction.pixels, target)
        return Loss(losses.sum(), len(losses))

    def compute_goal(self, batch: Batch) -> float:
        """Return the share LEARNED of the variance of the patches: pixels are never fitted exactly."""
        return LEARNED * self.compute_chance(batch).loss

    def compute_chance(self, batch: Batch) -> Chance:
        count = math.prod(self.mae.grid(batch.images.shape[2:]))
        patches = torch.arange(count, device=batch.images.device).expand(len(batch.images), -1)
        target = self.mae.make_target(batch.images, patches)
        loss = (target - target.mean(0)).square().mean().item()
        return Chance(loss, f"{loss:.4g}, the loss of each patch's mean over the pictures")

    def find_fault(self, batch: Batch, data: Data) -> str | None:
        return describe_equal_images(batch.images)

    def draw_noise(self, indices: Int64[Tensor, " B"]) -> Float[Tensor, "B h w"]:
        """Draw the noise that hides patches of validation samples, equal in every validation and on any rank."""
        return draw_mask_noise(self.mae, indices, self.images.size)

    def on_validation_epoch_start(self) -> None:
        self.tallies = []
        self.probe.start_validation(self.trainer)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.probe.add_batch(self.mae, self.images, batch)
        if not len(batch.indices):  # no sample was readable
            return
        tally = tally_batch(self.mae, batch.images, batch.indices)
        self.tallies = [reduce(Tally.add, [*self.tallies, tally])]

    def on_validation_epoch_end(self) -> None:
        tallies = gather_objects(self.tallies)
        if self.trainer.sanity_checking:  # its two batches may be empty
            return
        if not tallies:
            raise ValueError("val must hold a picture that can be read, got none")
        tally = reduce(Tally.add, tallies)
        scores = score_tally(tally, "val")
        self.validated, self.patch_variance = int(tally.images), scores["mean_of_patches"]
        self.metrics = {"val/loss": scores["loss"], **self.select_logged(scores)}
        self.metrics |= self.probe.finish_validation(self.images)
        # The values are equal on all ranks; max keeps them exact.
        self.log_dict(self.metrics, prog_bar=True, sync_dist=True, reduce_fx="max")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = self.global_step
        if self.pictures_every and step % self.pictures_every == 0 and step != self.last_figure:
            self.last_figure = step
            if self.trainer.is_global_zero:
                self.draw_reconstructions(Path(self.trainer.default_root_dir))

    @torch.no_grad()
    def draw_reconstructions(self, run: Path) -> None:
        """Draw some validation images, masked and reconstructed, into a file and for TensorBoard."""
        data, training = self.images, self.training
        samples = data.validation[:: max(1, len(data.validation) // SHOWN)][:SHOWN]  # they may be sorted by class
        batch = data.validation_pictures[[Pick(0, sample) for sample in samples]]
        if not len(batch.indices):
            return
        self.eval()
        images = batch.images.to(self.device)
        figure = draw_reconstructions(self.mae, data.preprocess, images, self.draw_noise(batch.indices))
        self.train(training)
        path = run / "reconstructions" / f"step-{self.global_step:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as temporary:
            figure.save(temporary, "png")
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                pixels = np.asarray(figure.convert("RGB"))
                logger.experiment.add_image("reconstructions", pixels, self.global_step, dataformats="HWC")

    def summarize(self, run: Path, weights: str, baselines: bool) -> RunSummary:
        if self.pictures_every:
            self.draw_reconstructions(run)
        probes, baseline_scores = self.probe.scores, self.probe.baselines
        if baselines and not probes:
            baseline_scores = evaluate_baselines(self.images).accuracy
        errors = {weights: self.metrics["val/loss"], "mean of each patch (baseline)": self.patch_variance}
        shares = {
            "explained variance": self.metrics["val/explained"],
            **probes,
            **baseline_scores,
        }
        better = list_better_baselines(
            "explained variance", shares["explained variance"], {"the mean of each patch": 0.0}
        )
        better += list_inputs_above_features(probes)
        fitted = [f"probes are fitted to {format_count(self.probe.fitted, 'training pictures')}"] if probes else []
        figures = f"examples: {run}/reconstructions; " if self.pictures_every else ""
        normalised = f"\n({TRUE_STATISTICS})" if self.mae.norm_pix else ""
        finetune = f"vitkit fit --config configs/finetune_folder.yaml --pretrained {run}/model --data.train PICTURES"
        return RunSummary(
            f"squared error of hidden patches on {self.data.validation_title}, "
            f"{format_count(self.validated, 'pictures')}{normalised}",
            [
                *((name, f"{error:.4f}") for name, error in errors.items()),
                *((name, f"{share:.2%}") for name, share in shares.items()),
                *((sentence, "") for sentence in fitted),
                *((sentence, "") for sentence in better),
            ],
            {
                "mean_of_patches": self.patch_variance,
                "norm_pix": self.mae.norm_pix,
                "probed_after_epochs": self.probe.epoch,
                "probes": probes,
                "baselines": baseline_scores,
                "worse_than_baselines": better,
            },
            f"{figures}vitkit reconstruct {run}/model PICTURES\n{finetune}",
        )
