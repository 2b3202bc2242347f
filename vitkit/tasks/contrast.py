"""Learning which picture belongs to which text (https://arxiv.org/abs/2103.00020).

b pictures of one rank, B of all, U different texts, T ids, E embedding.
"""

from collections.abc import Callable, Mapping
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
from vitkit.evaluation.recall import TOP, Retrieval, format_recall_rows, pair_captions
from vitkit.evaluation.retrieval_sheets import draw_captions_with_images
from vitkit.losses.contrastive import Contrast as Criterion
from vitkit.losses.contrastive import depends_on_bias
from vitkit.losses.ranks import gather_in_order
from vitkit.models import CLIP, Pair, TextTower
from vitkit.nn import EndOfText
from vitkit.tasks.batch_faults import explain_equal, find_contradiction
from vitkit.tasks.batch_statistics import NAMES, noted
from vitkit.tasks.task import Guess, Loss, Outcome, Task, say

WAYS = {"text": "image_to_text", "image": "text_to_image"}  # by the word in the names that are logged


class Contrast(Task):
    """A picture comes to lie by its captions and away from all others of the batch, of all ranks.

    Validates over all held-out pictures and their different captions, of all ranks: recall in both directions, where a
    picture is found by any caption that it has and a caption finds any picture that has it; the loss is that of all
    pictures with their first captions as one batch.

    Args:
        loss: vitkit.losses.softmax, vitkit.losses.sigmoid or one of your own; the model has a bias exactly where the
            loss depends on it.
        chunk: encode so many pictures, then texts, at a time, and again in the backward pass: the memory of a small
            batch for the gradients of a big one (https://arxiv.org/abs/2101.06983).
        varied: training pictures, at most, that are looked at when training has ended, each varied as in no epoch.
        task: the arguments of Task.
    """

    exact = True  # the scale

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
        biased = depends_on_bias(loss)
        if not biased and model.bias is not None:
            raise ValueError(
                "model.bias must be null for a loss that does not depend on it, such as vitkit.losses.softmax, "
                f"got bias={model.bias.item():g}; or take vitkit.losses.sigmoid"
            )
        if biased and model.bias is None:
            raise ValueError(
                "model.bias must be given for a loss that depends on it, such as -10 for vitkit.losses.sigmoid, "
                "got bias=None; or take vitkit.losses.softmax"
            )
        self.criterion, self.chunk, self.varied = loss, chunk, varied
        self.seen = torch.zeros(len(NAMES) + 1, dtype=torch.float64)  # see `noted`; since the last row
        self.cut = self.lost = 0  # texts that did not fit: on this rank, and on all by the last validation
        self.retrieval: Retrieval | None = None
        self.tokenizer: Tokenizer | None = None
        self.texts: tuple[str, ...] = ()  # the captions of all that validate

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
        fits(self.clip.text, data.tokenizer)
        self.texts, _ = pair_captions([data.held_out_captioned.captions[sample] for sample in data.validation])
        data.tokenizer.judge(self.texts, data.tokenizer.rows(self.texts)[1])

    def on_train_start(self) -> None:
        super().on_train_start()
        self.train()  # only now: before, Lightning would warn of what is not in training mode

    def train(self, mode: bool = True) -> "Contrast":
        """What is frozen, a tower or a block, is as it was: without dropout and drop path."""
        super().train(mode)
        for part in self.clip.modules():
            if (own := [*part.parameters()]) and not any(parameter.requires_grad for parameter in own):
                part.train(False)
        return self

    def speed_up(self) -> None:
        self.clip.image.compile()
        self.clip.text.compile()

    def loss(self, batch: PairBatch) -> Loss:
        self.heed(batch)
        image = self.encoded(self.clip.encode_image, batch.images)
        ids = batch.ids if batch.ids.numel() else batch.ids.new_zeros(0, self.clip.text.embed.context)
        text = self.encoded(self.clip.encode_text, ids)[batch.rows]
        own, positives = self.clip.pair(image, text), losses.together(batch.positives)
        every = own._replace(image=losses.together(image), text=losses.together(text))
        with torch.autocast(image.device.type, enabled=False):  # its sums have thousands of terms
            total = self.criterion(own, every, batch.positives, positives)
        if self.training:
            self.seen = self.seen.to(image.device) + noted(own, every, batch.positives, positives)
        return Loss(total, len(image))

    def floor(self, batch: PairBatch) -> float:
        """Return the loss of an axis for each concept, at the largest scale: the entropy of a softmax's positives."""
        _, axis = batch.positives.unique(return_inverse=True)
        axes = F.one_hot(axis).float()
        scale = axes.new_tensor(self.clip.most)
        return self.mean_loss(Pair(axes, axes, scale, -scale / 2), batch.positives)

    def guess(self, batch: PairBatch) -> Guess:
        positives = (batch.positives[:, None] == batch.positives).float().mean()
        axes, scale = batch.images.new_zeros(len(batch.positives), 1), batch.images.new_zeros(())
        loss = self.mean_loss(Pair(axes, axes, scale, positives.logit(eps=1e-6)), batch.positives)
        return Guess(loss, f"{loss:.4g}, that of equal logits for all pairs")

    @torch.no_grad()
    def mean_loss(self, pair: Pair, positives: Int64[Tensor, " B"]) -> float:
        return self.criterion(pair, pair, positives, positives).item() / len(positives)

    def find_fault(self, batch: PairBatch, data: Data) -> str | None:
        if (twins := find_contradiction(batch.images, batch.positives)) is None:
            return explain_equal(batch.images)
        names = [data.name_sample(int(batch.indices[row])) for row in twins]
        return f"the captions contradict each other: {' and '.join(names)} are the same picture"

    def encoded(self, encode: Callable[[Tensor], Tensor], x: Tensor) -> Float[Tensor, "rows E"]:
        if self.chunk is None or len(x) <= self.chunk:
            return encode(x)
        return torch.cat([checkpoint(encode, part, use_reentrant=False) for part in x.split(self.chunk)])

    def heed(self, batch: PairBatch) -> None:
        """Tell the first time that texts are cut."""
        if not batch.cut or self.tokenizer is None:
            return
        if self.tokenizer.overflow == "warn" and not self.cut:
            told = f"{batch.cut} texts of a batch do not fit into {self.tokenizer.context} ids"
            say(f"{told}, and lose their ends; the last report counts them")
        self.cut += batch.cut

    def noted(self) -> Mapping[str, float]:
        *sums, rows = self.trainer.strategy.reduce(self.seen, reduce_op="sum").tolist()
        self.seen = torch.zeros_like(self.seen)
        means = {f"train/{name}": total / rows for name, total in zip(NAMES, sums, strict=True)}
        return means | {"train/scale": self.clip.log_scale.exp().item()}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What all ranks have counted, with which the first goes on."""
        counted = torch.cat([self.seen.to(self.device), self.seen.new_tensor([self.cut], device=self.device)])
        checkpoint["counted"] = self.trainer.strategy.reduce(counted, reduce_op="sum")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.global_rank == 0:
            self.seen, self.cut = checkpoint["counted"][:-1], int(checkpoint["counted"][-1])

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Optimizer | Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.clip.clamp()

    def on_validation_epoch_start(self) -> None:
        """All that asks the weights: when the epoch ends, averaged ones have gone again."""
        self.looked: list[tuple[Tensor, ...]] = []  # indices and features of pictures
        if not self.trainer.sanity_checking:
            with self.trainer.precision_plugin.val_step_context():
                self.captions = encode_texts_by_rank(self.clip, self.pairs.tokenizer, self.texts)
            _, _, *scale = self.clip.pair(self.captions, self.captions)
            self.logits = [one.to(self.device, copy=True) for one in scale]

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.indices):  # something of it could be read
            self.looked.append((batch.indices.cpu(), self.clip.encode_image(batch.images).cpu()))

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:  # of two batches, which may hold nothing
            return
        if (looked := gather_in_order(self.looked)) is None:
            raise ValueError("val must hold a picture that can be read, got none")
        indices, images = looked[0].tolist(), looked[1].to(self.device)
        source = self.pairs.held_out_captioned
        self.retrieval = retrieve_held_out(source, indices, images, self.texts, self.captions)
        self.validated = len(images)
        self.lost = int(self.trainer.strategy.reduce(torch.tensor(self.cut, device=self.device), reduce_op="sum"))
        pair = Pair(images, self.retrieval.texts[self.retrieval.list_first_captions()], *self.logits)
        positives = torch.tensor([source.positives[index] for index in indices], device=self.device)
        self.metrics = {"val/loss": self.mean_loss(pair, positives), **self.rename(self.retrieval.compute_metrics())}
        # Equal on all ranks: max is exact.
        for name, value in self.metrics.items():
            self.log(name, value, prog_bar=name in ("val/loss", self.score), sync_dist=True, reduce_fx="max")

    def outcome(self, run: Path, latest: str, best: float, baselines: bool) -> Outcome:
        held_out = cast(Retrieval, self.retrieval)
        draw_captions_with_images(held_out, self.pairs.held_out, self.pairs.preprocess, run / "retrievals.png")
        numbers: dict[str, Any] = {**held_out.compute_metrics(), "cut_texts": self.lost}
        rows = [(f"{latest}: mean recall", f"{numbers['mean_recall']:.2%}"), *format_recall_rows(numbers)]
        rows.append(("the best epoch, picked in hindsight", f"{best:.2%}"))
        if self.varied:
            self.eval()
            again = retrieve_varied(self.clip, self.pairs, self.varied, self.device)
            numbers["varied"] = {"pictures": len(again.images), **again.compute_metrics()}
            rows += [(f"varied anew: {name}", value) for name, value in format_recall_rows(numbers["varied"])]
        if baselines:
            numbers["baselines"] = retrieve_by_words(self.pairs).compute_metrics()
            rows += [(f"pixels, words: {name}", value) for name, value in format_recall_rows(numbers["baselines"])]
        return Outcome(
            f"recall among {self.validated:,} pictures and {len(held_out.texts):,} captions held out, at 1, 5, 10",
            rows,
            numbers,
            f"{run}/retrievals.png shows some; vitkit evaluate {run}/model PAIRS\n"
            f"vitkit zero-shot {run}/model PICTURES --classes NAME...\n"
            f"vitkit index PICTURES --model {run}/model --db DB",
        )


def fits(text: TextTower, tokenizer: Tokenizer) -> None:
    """Raises: ValueError that lists what of a tokenizer is not as the tower has to have it."""
    context, whole = text.embed.context, text.whole
    end = text.pool.end if isinstance(text.pool, EndOfText) else None
    wrong = {
        f"data.tokenizer.context must be the text tower's {context}": tokenizer.context != context,
        f"data.tokenizer.whole must be {str(whole).lower()} for {type(text.pool).__name__}": tokenizer.whole != whole,
    }
    problems = [message for message, holds in wrong.items() if holds]
    if problems := problems + find_misfits(tokenizer.vocabulary, text.embed.tokens.num_embeddings, end):
        told = f"context={tokenizer.context}, whole={str(tokenizer.whole).lower()}, vocabulary={tokenizer.name}"
        hint = "see model.model.text.vocabulary, context and pool.end"
        raise ValueError(f"{'; '.join(problems)}; got {told}; {hint}")
