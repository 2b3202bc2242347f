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
from vitkit.losses import binary_cross_entropy, cross_entropy
from vitkit.losses.ranks import gather_in_order
from vitkit.tasks.batch_faults import explain_equal, find_contradiction
from vitkit.tasks.task import Guess, Loss, Outcome, Task


class Classify(Task):
    """The loss follows from the labels: one for each picture has cross entropy, a set of them binary cross entropy.

    Validates over every sample of all ranks: the loss without smoothing, mixing and weights, and the metrics of
    `vitkit.evaluation.metrics`, of which accuracy and the mean recall of the classes are logged, of sets the mean
    average precision. `confusion` are the counts (K, K) of labels by predictions.

    Args:
        label_smoothing: s in (1 - s) label + s / K.
        loss: another one, such as vitkit.losses.binary_cross_entropy for one label.
        class_weights: a weight for each class, or "balanced": pictures / (K * pictures of the class). One label: of
            each picture, by its label. Sets: of a yes, and balanced is the no / the yes of the class.
        mix: transforms of a batch and its targets, MixUp and CutMix of torchvision; each batch has one of them.
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
        self.own_loss = loss
        self.class_weights = class_weights
        self.mix = mix
        self.multilabel = False
        self.weights: Tensor | None = None
        self.measured: dict[str, float] = {}  # by the last validation
        self.frequencies: dict[str, float] = {}  # of the classes, on the same samples
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
        if not data.names:
            raise ValueError("data.unlabelled must be false for Classify, which learns labels; see configs/pretrain_*")
        self.names = data.names
        self.multilabel = data.multilabel
        if self.class_weights is not None and isinstance(data.draw, Balanced):
            raise ValueError("class_weights must not meet data.draw = Balanced, which evens out the classes already")
        wrong = {
            "loss must take the sets of labels that the data has, got cross_entropy": self.own_loss is cross_entropy,
            f"label_smoothing must be 0 for sets of labels, got {self.label_smoothing}": self.label_smoothing > 0,
            "class_weights must be left to your own loss": None not in (self.class_weights, self.own_loss),
        }
        if self.multilabel and any(wrong.values()):
            raise ValueError("; ".join(message for message, holds in wrong.items() if holds))
        self.weights = None if self.class_weights is None else weights_of(self.class_weights, images)

    def loss(self, batch: Batch) -> Loss:
        images, blend = batch.images, None
        if self.mix and self.training:
            # What the mixing does to the rows of this matrix, it does to targets.
            blend = torch.eye(len(images), device=images.device, dtype=torch.float32)
            images, blend = self.mix[int(torch.randint(len(self.mix), ()))](images, blend)
        logits = self.logits(images)
        targets = self.targets(batch.labels, logits)
        with torch.autocast(logits.device.type, enabled=False):  # the rows of targets must sum to 1
            smoothed = targets if blend is None else blend.to(targets) @ targets
        smoothed = smoothed * (1 - self.label_smoothing) + self.label_smoothing / logits.shape[1]
        if self.weights is not None and batch.labels.ndim == 2:
            losses = binary_cross_entropy(logits, smoothed, self.weights.to(logits))
        else:
            losses = self.criterion(batch.labels)(logits, smoothed)
            losses = losses if self.weights is None else losses * (targets * self.weights.to(logits)).sum(1)
        if losses.shape != (len(images),):
            raise ValueError(f"loss must give a number for each of {len(images)} pictures, got {tuple(losses.shape)}")
        return Loss(losses.sum(), len(losses))

    def criterion(self, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss for labels of this shape, (B,) or (B, K)."""
        return self.own_loss or (binary_cross_entropy if labels.ndim == 2 else cross_entropy)

    def targets(self, labels: Tensor, logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        return (labels if labels.ndim == 2 else F.one_hot(labels, logits.shape[1])).to(logits)

    def logits(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        logits = self.model(images)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))  # 16 bits are too coarse for exponentials

    def simplify(self) -> None:
        self.label_smoothing, self.class_weights = 0.0, None

    def guess(self, batch: Batch) -> Guess:
        guesses = 2 if self.multilabel else len(self.names)
        return Guess(math.log(guesses), f"ln {guesses} = {math.log(guesses):.4g}, a guess's")

    def find_fault(self, batch: Batch, data: Data) -> str | None:
        if (twins := find_contradiction(batch.images, batch.labels)) is None:
            return explain_equal(batch.images)
        places = [data.name_sample(int(batch.indices[row])) for row in twins]
        labels = [spell_label(batch.labels[row], data.names) for row in twins]
        names = [f"{place} ({label})" for place, label in zip(places, labels, strict=True)]
        return f"the labels contradict each other: {' and '.join(names)} are the same picture"

    def on_validation_epoch_start(self) -> None:
        self.answers: list[tuple[Tensor, ...]] = []  # indices, logits, labels, losses

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if not len(batch.indices):  # nothing of it could be read
            return
        logits = self.logits(batch.images)
        losses = self.criterion(batch.labels)(logits, self.targets(batch.labels, logits))
        self.answers.append(tuple(column.cpu() for column in (batch.indices, logits, batch.labels, losses)))

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:  # of two batches, which may hold nothing
            return
        # Ranks may have unequal numbers of batches, so this is the first moment at which they can meet.
        if (answers := gather_in_order(self.answers)) is None:
            raise ValueError("val must hold a picture that can be read, got none")
        indices, logits, labels, losses = answers
        self.answers = []
        if self.multilabel and not labels.any():
            raise ValueError("val must hold a picture with a label, got none")
        self.validated, self.measured = len(indices), compute_metrics(logits, labels)
        self.frequencies = score_frequencies(self.images, labels)
        self.confusion = self.confusion if self.multilabel else count_confusion(logits, labels)
        self.metrics = {"val/loss": losses.mean().item(), **self.rename(self.measured)}
        # Equal on all ranks: max is exact.
        self.log_dict(self.metrics, prog_bar=True, sync_dist=True, reduce_fx="max")

    def outcome(self, run: Path, latest: str, best: float, baselines: bool) -> Outcome:
        """The score to quote is that of the last epoch: the best was chosen on the pictures that it is measured on."""
        rows = {latest: self.metrics[self.score]}
        if "val/recall" in self.metrics:
            rows["mean recall of the classes"] = self.metrics["val/recall"]
        rows["the best epoch, picked in hindsight"] = best
        scores = self.frequencies
        if baselines and not self.multilabel:
            scores = {**scores, **evaluate_baselines(self.images)}
        pictured = ""
        if not self.multilabel:
            draw_confusion(self.confusion, self.names, run / "confusion.png")
            pictured = f"{run}/confusion.png shows what is taken for what; "
        return Outcome(
            f"{self.score.removeprefix('val/')} on {self.validated:,} pictures held out",
            [(name, f"{share:.2%}") for name, share in {**rows, **scores}.items()],
            {**self.measured, "baselines": scores},
            f"{pictured}vitkit predict {run}/model PICTURES",
        )


def spell_label(label: Tensor, names: Sequence[str]) -> str:
    """Return the name of one class, or those of a set."""
    return (
        names[int(label)] if label.ndim == 0 else "|".join(name for name, has in zip(names, label, strict=True) if has)
    )


def weights_of(given: Sequence[float] | str, data: ImageData) -> Float[Tensor, " K"]:
    if isinstance(given, str):
        labels = [data.source.labels[sample] for sample in data.training]
        counts = torch.tensor(count_per_class(labels, data.num_classes)).clamp(min=1)
        return (len(labels) - counts) / counts if data.multilabel else len(labels) / (data.num_classes * counts)
    if len(given) != data.num_classes:
        raise ValueError(f"class_weights must be one for each of {data.num_classes} classes, got {list(given)}")
    if not all(weight >= 0 and math.isfinite(weight) for weight in given):
        raise ValueError(f"class_weights must be numbers from 0 on, got {list(given)}")
    return torch.tensor(given)
