"""Contrastive learning of images and texts (https://arxiv.org/abs/2103.00020).

b images of one rank, B images of all ranks, U unique texts, T ids, E embedding.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from vitkit import losses
from vitkit.data.data_module import Data
from vitkit.data.pairs import PairBatch, Pairs
from vitkit.data.pictures import Batch
from vitkit.data.tokenizer import Tokenizer, find_misfits
from vitkit.evaluation.bag_of_words import retrieve_by_words
from vitkit.evaluation.held_out_retrieval import encode_texts_by_rank, retrieve_held_out, retrieve_varied
from vitkit.evaluation.probes import list_better_baselines
from vitkit.evaluation.recall import TOP, Retrieval, format_recall_rows, pair_captions
from vitkit.evaluation.retrieval_sheets import draw_captions_with_images
from vitkit.losses.contrastive import Contrast as Criterion
from vitkit.losses.contrastive import depends_on_bias
from vitkit.losses.ranks import gather_in_order
from vitkit.models import CLIP, Pair, TextTower
from vitkit.nn import EndOfText
from vitkit.support.errors import format_count
from vitkit.tasks.batch_faults import describe_equal_images, find_contradiction
from vitkit.tasks.batch_statistics import NAMES, sum_statistics
from vitkit.tasks.task import Chance, Loss, RunSummary, Task, say

NEAREST_CAPTIONS = "captions of the nearest training images"
WAYS = {"text": "image_to_text", "image": "text_to_image"}  # directions by their short names in logs


class Contrast(Task):
    """Contrastive learning with all other captions in the batch, of all ranks, as negatives.

    Validation covers all held-out images and their unique captions, of all ranks: recall in both directions, where any
    caption of an image and any image of a caption is a positive. The loss is that of all images with their first
    captions as one batch.

    Args:
        loss: vitkit.losses.softmax, vitkit.losses.sigmoid or one of your own. The model must have a bias exactly if
            the loss depends on it.
        chunk: the number of images, then of texts, encoded at a time and again in the backward pass: the memory of a
            small batch for the gradients of a big one (https://arxiv.org/abs/2101.06983).
        varied: the most training images in a retrieval after training, with augmentations of no epoch.
        task: the arguments of Task.
    """

    exact = True  # because of the scale

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Criterion = losses.softmax,
        chunk: int | None = None,
        varied: int = 2000,
        **task: Any,
    ) -> None:
        super().__init__(model, **task)
        if not isinstance(model, CLIP):
            raise ValueError(f"model must be a vitkit.models.CLIP, got {type(model).__name__}")
        if (chunk is not None and chunk < 1) or varied < 0:
            raise ValueError(f"chunk must be at least 1 and varied at least 0, got chunk={chunk}, varied={varied}")
        needs_bias = depends_on_bias(loss)
        if not needs_bias and model.bias is not None:
            raise ValueError(
                "model.bias must be null for a loss that does not depend on it, such as vitkit.losses.softmax, "
                f"got bias={model.bias.item():g}; or take vitkit.losses.sigmoid"
            )
        if needs_bias and model.bias is None:
            raise ValueError(
                "model.bias must be given for a loss that depends on it, such as -10 for vitkit.losses.sigmoid, "
                "got bias=None; or take vitkit.losses.softmax"
            )
        self.criterion, self.chunk, self.varied = loss, chunk, varied
        self.statistics = torch.zeros(len(NAMES) + 1, dtype=torch.float64)  # sums since the last row of the log
        self.cut = self.total_cut = 0  # texts that did not fit: on this rank; on all ranks at the last validation
        self.retrieval: Retrieval | None = None
        self.tokenizer: Tokenizer | None = None
        self.texts: tuple[str, ...] = ()  # the captions of all validation images

    @property
    def clip(self) -> CLIP:
        return cast(CLIP, self.model)

    @property
    def pairs(self) -> Pairs:
        return cast(Pairs, self.data)

    @property
    def score(self) -> str:
        return "val/recall"

    @property
    def standard_names(self) -> Mapping[str, str]:
        names = {"recall": "mean_recall"}
        names |= {f"{side}_recall_{k}": f"{way}_R@{k}" for side, way in WAYS.items() for k in TOP}
        return names | {f"{side}_median_rank": f"{way}_median_rank" for side, way in WAYS.items()}

    def adapt(self, data: Data) -> None:
        if not isinstance(data, Pairs):
            raise ValueError(f"data must be vitkit.data.pairs.Pairs for Contrast, got {type(data).__name__}")
        if len(data.validation) < 2:
            raise ValueError(f"val must hold at least two pictures, got {len(data.validation)}")
        self.tokenizer = data.tokenizer
        check_tokenizer(self.clip.text, data.tokenizer)
        self.texts, _ = pair_captions([data.held_out_captioned.captions[sample] for sample in data.validation])
        data.tokenizer.check_cut(self.texts, data.tokenizer.encode_and_cut(self.texts)[1])

    def compile_model(self) -> None:
        self.clip.image.compile()
        self.clip.text.compile()

    def compute_loss(self, batch: PairBatch) -> Loss:
        self.count_cut_texts(batch)
        image = self.encode_in_chunks(self.clip.encode_image, batch.images)
        ids = batch.ids if batch.ids.numel() else batch.ids.new_zeros(0, self.clip.text.embed.context)
        text = self.encode_in_chunks(self.clip.encode_text, ids)[batch.rows]
        local, positives = self.clip.make_pair(image, text), losses.gather_with_gradient(batch.positives)
        everything = local._replace(image=losses.gather_with_gradient(image), text=losses.gather_with_gradient(text))
        with torch.autocast(image.device.type, enabled=False):  # its sums have thousands of terms
            total = self.criterion(local, everything, batch.positives, positives)
        if self.training:
            sums = sum_statistics(local, everything, batch.positives, positives)
            self.statistics = self.statistics.to(image.device) + sums
        return Loss(total, len(image))

    def compute_floor(self, batch: PairBatch) -> float:
        """Return the loss of one axis per group of positives, at the largest scale: for softmax their entropy."""
        _, axis = batch.positives.unique(return_inverse=True)
        axes = F.one_hot(axis).float()
        scale = axes.new_tensor(self.clip.most)
        return self.compute_mean_loss(Pair(axes, axes, scale, -scale / 2), batch.positives)

    def compute_chance(self, batch: PairBatch) -> Chance:
        positives = (batch.positives[:, None] == batch.positives).float().mean()
        axes, scale = batch.images.new_zeros(len(batch.positives), 1), batch.images.new_zeros(())
        loss = self.compute_mean_loss(Pair(axes, axes, scale, positives.logit(eps=1e-6)), batch.positives)
        return Chance(loss, f"{loss:.4g}, the loss of equal logits for all pairs")

    @torch.no_grad()
    def compute_mean_loss(self, pair: Pair, positives: Int64[Tensor, " B"]) -> float:
        return self.criterion(pair, pair, positives, positives).item() / len(positives)

    def find_fault(self, batch: PairBatch, data: Data) -> str | None:
        if (pair := find_contradiction(batch.images, batch.positives)) is None:
            return describe_equal_images(batch.images)
        names = [data.name_sample(int(batch.indices[row])) for row in pair]
        return f"the captions contradict each other: {' and '.join(names)} are the same picture"

    def encode_in_chunks(self, encode: Callable[[Tensor], Tensor], x: Tensor) -> Float[Tensor, "rows E"]:
        if self.chunk is None or len(x) <= self.chunk:
            return encode(x)
        return torch.cat([checkpoint(encode, part, use_reentrant=False) for part in x.split(self.chunk)])

    def count_cut_texts(self, batch: PairBatch) -> None:
        """Count the texts that do not fit, and print a note the first time."""
        if not batch.cut or self.tokenizer is None:
            return
        if self.tokenizer.overflow == "warn" and not self.cut:
            say(
                f"{format_count(batch.cut, 'texts')} of a batch above {self.tokenizer.context} ids cut off at the end; "
                "report.json has the count"
            )
        self.cut += batch.cut

    def collect_statistics(self) -> Mapping[str, float]:
        *sums, rows = self.trainer.strategy.reduce(self.statistics, reduce_op="sum").tolist()
        self.statistics = torch.zeros_like(self.statistics)
        means = {f"train/{name}": total / rows for name, total in zip(NAMES, sums, strict=True)}
        return means | {"train/scale": self.clip.log_scale.exp().item()}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the sums over all ranks, with which the first rank resumes."""
        sums = torch.cat([self.statistics.to(self.device), self.statistics.new_tensor([self.cut], device=self.device)])
        checkpoint["counted"] = self.trainer.strategy.reduce(sums, reduce_op="sum")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.global_rank == 0:
            self.statistics, self.cut = checkpoint["counted"][:-1], int(checkpoint["counted"][-1])

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Optimizer | Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.clip.clamp()

    def on_validation_epoch_start(self) -> None:
        """Encode the texts here: at the end of the epoch averaged weights are swapped out again."""
        self.image_features: list[tuple[Tensor, ...]] = []  # indices and embeddings
        if not self.trainer.sanity_checking:
            with self.trainer.precision_plugin.val_step_context():
                self.text_features = encode_texts_by_rank(self.clip, self.pairs.tokenizer, self.texts)
            _, _, *scale = self.clip.make_pair(self.text_features, self.text_features)
            self.scale_and_bias = [value.to(self.device, copy=True) for value in scale]

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.indices):  # some samples were readable
            self.image_features.append((batch.indices.cpu(), self.clip.encode_image(batch.images).cpu()))

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:  # its two batches may be empty
            return
        if (columns := gather_in_order(self.image_features)) is None:
            raise ValueError("val must hold a picture that can be read, got none")
        indices, images = columns[0].tolist(), columns[1].to(self.device)
        source = self.pairs.held_out_captioned
        self.retrieval = retrieve_held_out(source, indices, images, self.texts, self.text_features)
        self.validated = len(images)
        self.total_cut = int(self.trainer.strategy.reduce(torch.tensor(self.cut, device=self.device), reduce_op="sum"))
        pair = Pair(images, self.retrieval.texts[self.retrieval.list_first_captions()], *self.scale_and_bias)
        positives = torch.tensor([source.positives[index] for index in indices], device=self.device)
        metrics = self.select_logged(self.retrieval.compute_metrics())
        self.metrics = {"val/loss": self.compute_mean_loss(pair, positives), **metrics}
        # The values are equal on all ranks; max keeps them exact.
        for name, value in self.metrics.items():
            self.log(name, value, prog_bar=name in ("val/loss", self.score), sync_dist=True, reduce_fx="max")

    def summarize(self, run: Path, weights: str, baselines: bool) -> RunSummary:
        held_out = cast(Retrieval, self.retrieval)
        draw_captions_with_images(held_out, self.pairs.held_out, self.pairs.preprocess, run / "retrievals.png")
        numbers: dict[str, Any] = {**held_out.compute_metrics(), "cut_texts": self.total_cut}
        rows = [(f"{weights}: mean recall", f"{numbers['mean_recall']:.2%}"), *format_recall_rows(numbers)]
        if self.varied:
            self.eval()
            varied = retrieve_varied(self.clip, self.pairs, self.varied, self.device)
            numbers["varied"] = {"pictures": len(varied.images), **varied.compute_metrics()}
            rows += [("training pairs, new crops", ""), *indent_rows(format_recall_rows(numbers["varied"]))]
        if baselines:
            numbers["baselines"] = retrieve_by_words(self.pairs).compute_metrics()
            rows += [(f"baseline: {NEAREST_CAPTIONS}", ""), *indent_rows(format_recall_rows(numbers["baselines"]))]
            recall = {NEAREST_CAPTIONS: numbers["baselines"]["mean_recall"]}
            numbers["worse_than_baselines"] = list_better_baselines("mean recall", numbers["mean_recall"], recall)
            rows += [(sentence, "") for sentence in numbers["worse_than_baselines"]]
        return RunSummary(
            f"recall@1, 5, 10 on {self.data.validation_title}, {format_count(self.validated, 'pictures')} and "
            f"{format_count(len(held_out.texts), 'captions')}",
            rows,
            numbers,
            f"examples: {run}/retrievals.png; vitkit evaluate {run}/model PAIRS\n"
            f"vitkit zero-shot {run}/model PICTURES --classes NAME...\n"
            f"vitkit index PICTURES --model {run}/model --db DB",
        )


def indent_rows(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"  {name}", value) for name, value in rows]


def check_tokenizer(text: TextTower, tokenizer: Tokenizer) -> None:
    """Compare a tokenizer with the text tower. Raises: ValueError that lists all differences."""
    context, whole = text.embed.context, text.whole
    end = text.pool.end if isinstance(text.pool, EndOfText) else None
    wrong = {
        f"data.tokenizer.context must be the text tower's {context}": tokenizer.context != context,
        f"data.tokenizer.whole must be {str(whole).lower()} for {type(text.pool).__name__}": tokenizer.whole != whole,
    }
    problems = [message for message, holds in wrong.items() if holds]
    if problems := problems + find_misfits(tokenizer.vocabulary, text.embed.tokens.num_embeddings, end):
        values = f"context={tokenizer.context}, whole={str(tokenizer.whole).lower()}, vocabulary={tokenizer.name}"
        hint = "see model.model.text.vocabulary, context and pool.end"
        raise ValueError(f"{'; '.join(problems)}; got {values}; {hint}")
