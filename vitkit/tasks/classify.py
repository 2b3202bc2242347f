"""Image classification. Letters: B batch, K classes."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torchvision.transforms.v2 import Transform

from vitkit.data.data_module import Data
from vitkit.data.image_data import ImageData, get_images
from vitkit.data.order import Balanced, count_per_class
from vitkit.data.pictures import Batch
from vitkit.evaluation.baselines import evaluate_baselines, score_frequencies
from vitkit.evaluation.figures import draw_confusion
from vitkit.evaluation.metrics import compute_metrics, count_confusion
from vitkit.evaluation.probes import list_better_baselines
from vitkit.losses import binary_cross_entropy, cross_entropy
from vitkit.losses.ranks import gather_in_order
from vitkit.support.errors import format_count
from vitkit.tasks.batch_faults import describe_equal_images, find_contradiction
from vitkit.tasks.task import Chance, Loss, RunSummary, Task


class Classify(Task):
    """Image classification with cross entropy, or with binary cross entropy for multilabel data.

    Validation covers every sample of all ranks: the loss without smoothing, mixing and weights, and the metrics of
    `vitkit.evaluation.metrics`. Accuracy and mean recall are logged, for multilabel the mean average precision.
    `confusion` counts labels by predictions (K, K).

    Args:
        label_smoothing: s in (1 - s) label + s / K.
        loss: replaces the default loss, such as vitkit.losses.binary_cross_entropy for single labels.
        class_weights: a weight for each class, applied to the images of that label, or "balanced": images / (K *
            images of the class). Multilabel: applied to positive labels, and balanced is negatives / positives.
        mix: transforms of a batch and its targets, MixUp and CutMix of torchvision; one is drawn for each batch.
        task: the arguments of Task.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        label_smoothing: float = 0.0,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        class_weights: Sequence[float] | Literal["balanced"] | None = None,
        mix: Sequence[Transform] = (),
        **task: Any,
    ) -> None:
        super().__init__(model, **task)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be at least 0 and below 1, got label_smoothing={label_smoothing}")
        if class_weights is not None and mix:
            raise ValueError("class_weights must not meet mix, which blends labels; take data.draw = Balanced instead")
        self.label_smoothing = label_smoothing
        self.custom_loss = loss
        self.class_weights = class_weights
        self.mix = mix
        self.multilabel = False
        self.weights: Tensor | None = None
        self.evaluation: dict[str, float] = {}  # every metric of the last validation
        self.frequencies: dict[str, float] = {}  # the score of class frequencies in the last validation
        self.confusion = torch.zeros(0, 0, dtype=torch.int64)

    @property
    def images(self) -> ImageData:
        return cast(ImageData, self.data)

    @property
    def score(self) -> str:
        return "val/mAP" if self.multilabel else "val/accuracy"

    @property
    def standard_names(self) -> Mapping[str, str]:
        if self.multilabel:
            return {"mAP": "mean_average_precision"}
        return {"accuracy": "top1", "recall": "macro_recall"}

    def adapt(self, data: Data) -> None:
        images = get_images(data, type(self).__name__, ("images", "labels"))
        if not data.class_names:
            raise ValueError("data.unlabelled must be false for Classify, which learns labels; see configs/pretrain_*")
        self.names = data.class_names
        self.multilabel = data.multilabel
        if self.class_weights is not None and isinstance(data.draw, Balanced):
            raise ValueError("class_weights must not meet data.draw = Balanced, which evens out the classes already")
        wrong = {
            "loss must take multilabel targets, got cross_entropy": self.custom_loss is cross_entropy,
            f"label_smoothing must be 0 for multilabel data, got {self.label_smoothing}": self.label_smoothing > 0,
            "class_weights must be left out with your own loss": None not in (self.class_weights, self.custom_loss),
        }
        if self.multilabel and any(wrong.values()):
            raise ValueError("; ".join(message for message, holds in wrong.items() if holds))
        self.weights = None if self.class_weights is None else compute_class_weights(self.class_weights, images)

    def compute_loss(self, batch: Batch) -> Loss:
        images, blend = batch.images, None
        if self.mix and self.training:
            # Mixing the rows of an identity matrix gives the mixing of any targets.
            blend = torch.eye(len(images), device=images.device, dtype=torch.float32)
            images, blend = self.mix[int(torch.randint(len(self.mix), ()))](images, blend)
        logits = self.compute_logits(images)
        targets = self.make_targets(batch.labels, logits)
        with torch.autocast(logits.device.type, enabled=False):  # rounding would leave sums of targets unlike 1
            smoothed = targets if blend is None else blend.to(targets) @ targets
        smoothed = smoothed * (1 - self.label_smoothing) + self.label_smoothing / logits.shape[1]
        if self.weights is not None and batch.labels.ndim == 2:
            losses = binary_cross_entropy(logits, smoothed, self.weights.to(logits))
        else:
            losses = self.choose_loss(batch.labels)(logits, smoothed)
            losses = losses if self.weights is None else losses * (targets * self.weights.to(logits)).sum(1)
        if losses.shape != (len(images),):
            raise ValueError(f"loss must give one value for each of {len(images)} pictures, got {tuple(losses.shape)}")
        return Loss(losses.sum(), len(losses))

    def choose_loss(self, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss for labels (B,) or (B, K)."""
        return self.custom_loss or (binary_cross_entropy if labels.ndim == 2 else cross_entropy)

    def make_targets(self, labels: Tensor, logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        return (labels if labels.ndim == 2 else F.one_hot(labels, logits.shape[1])).to(logits)

    def compute_logits(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        logits = self.model(images)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))  # 16 bits are too coarse for exponentials

    def simplify(self) -> None:
        self.label_smoothing, self.class_weights = 0.0, None

    def compute_chance(self, batch: Batch) -> Chance:
        choices = 2 if self.multilabel else len(self.names)
        return Chance(math.log(choices), f"ln {choices} = {math.log(choices):.4g}, the chance level")

    def find_fault(self, batch: Batch, data: Data) -> str | None:
        if (pair := find_contradiction(batch.images, batch.labels)) is None:
            return describe_equal_images(batch.images)
        names = [data.name_sample(int(batch.indices[row])) for row in pair]
        labels = [spell_label(batch.labels[row], data.class_names) for row in pair]
        samples = [f"{name} ({label})" for name, label in zip(names, labels, strict=True)]
        return f"the labels contradict each other: {' and '.join(samples)} are the same picture"

    def on_validation_epoch_start(self) -> None:
        self.outputs: list[tuple[Tensor, ...]] = []  # indices, logits, labels, losses

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if not len(batch.indices):  # no sample was readable
            return
        logits = self.compute_logits(batch.images)
        losses = self.choose_loss(batch.labels)(logits, self.make_targets(batch.labels, logits))
        self.outputs.append(tuple(column.cpu() for column in (batch.indices, logits, batch.labels, losses)))

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:  # its two batches may be empty
            return
        # Ranks may have unequal numbers of batches, so they cannot gather earlier.
        if (outputs := gather_in_order(self.outputs)) is None:
            raise ValueError("val must hold a picture that can be read, got none")
        indices, logits, labels, losses = outputs
        self.outputs = []
        if self.multilabel and not labels.any():
            raise ValueError("val must hold a picture with a label, got none")
        self.validated, self.evaluation = len(indices), compute_metrics(logits, labels)
        self.frequencies = score_frequencies(self.images, labels)
        self.confusion = self.confusion if self.multilabel else count_confusion(logits, labels)
        self.metrics = {"val/loss": losses.mean().item(), **self.select_logged(self.evaluation)}
        # The values are equal on all ranks; max keeps them exact.
        self.log_dict(self.metrics, prog_bar=True, sync_dist=True, reduce_fx="max")

    def summarize(self, run: Path, weights: str, baselines: bool) -> RunSummary:
        name, value = self.score.removeprefix("val/"), self.metrics[self.score]
        scores, recalls = self.frequencies, {}
        if baselines and not self.multilabel:
            scores, recalls = evaluate_baselines(self.images)
        rows, better = {weights: value, **scores}, list_better_baselines(name, value, scores)
        if (recall := self.metrics.get("val/recall")) is not None:
            rows |= {"mean recall over classes": recall, **{f"  {name}": value for name, value in recalls.items()}}
            better += list_better_baselines("mean recall", recall, recalls)
        figure = ""
        if not self.multilabel:
            draw_confusion(self.confusion, self.names, run / "confusion.png")
            figure = f"confusion matrix: {run}/confusion.png; "
        return RunSummary(
            f"{name} on {self.data.validation_title}, {format_count(self.validated, 'pictures')}",
            [*((row, f"{share:.2%}") for row, share in rows.items()), *((sentence, "") for sentence in better)],
            {**self.evaluation, "baselines": scores, "baselines_macro_recall": recalls, "worse_than_baselines": better},
            f"{figure}vitkit predict {run}/model PICTURES",
        )


def spell_label(label: Tensor, names: Sequence[str]) -> str:
    """Return the name of a class, or the names of a multilabel row."""
    return (
        names[int(label)] if label.ndim == 0 else "|".join(name for name, has in zip(names, label, strict=True) if has)
    )


def compute_class_weights(weights: Sequence[float] | str, data: ImageData) -> Float[Tensor, " K"]:
    """Return the weights, or balanced ones. Raises: ValueError for a wrong number of weights or negative ones."""
    if isinstance(weights, str):
        labels = [data.source.labels[sample] for sample in data.training]
        counts = torch.tensor(count_per_class(labels, data.num_classes)).clamp(min=1)
        return (len(labels) - counts) / counts if data.multilabel else len(labels) / (data.num_classes * counts)
    if len(weights) != data.num_classes:
        raise ValueError(f"class_weights must be one for each of {data.num_classes} classes, got {list(weights)}")
    if not all(weight >= 0 and math.isfinite(weight) for weight in weights):
        raise ValueError(f"class_weights must be finite and at least 0, got {list(weights)}")
    return torch.tensor(weights)
