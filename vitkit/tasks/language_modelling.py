"""Predict the next id of a text. B windows, T ids, V vocabulary."""

import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from vitkit.data.corpus import IGNORED, Corpus, WindowBatch
from vitkit.data.data_module import Data
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.bits_per_byte import encode_windows
from vitkit.evaluation.text_baselines import join_texts, list_lower_baselines, score_text_baselines
from vitkit.generation import Sampling, generate
from vitkit.losses import next_token
from vitkit.models import TextDecoder
from vitkit.support.errors import format_count
from vitkit.support.files import write_text
from vitkit.tasks.task import Chance, Loss, RunSummary, Task

SAMPLES = "samples.txt"
HEADING = re.compile(r"^=== step (\d+) ===", re.MULTILINE)


class LanguageModelling(Task):
    """Language modelling by the cross entropy of the next id, in nats.

    Validation covers each id of the held-out texts once, with half a context before it: the bits that the model needs
    for each byte of them, whatever the vocabulary, and the perplexity of an id.

    Args:
        label_smoothing: the share of the target that all ids divide.
        sample_length: the most ids of the text that each validation draws from the model into samples.txt; 0 for none.
        task: the arguments of Task.
    """

    def __init__(
        self, model: nn.Module, *, label_smoothing: float = 0.0, sample_length: int = 256, **task: Any
    ) -> None:
        super().__init__(model, **task)
        if not isinstance(model, TextDecoder):
            raise ValueError(f"model must be a vitkit.models.TextDecoder, got {type(model).__name__}")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got label_smoothing={label_smoothing}")
        if sample_length < 0:
            raise ValueError(f"sample_length must be at least 0, got sample_length={sample_length}")
        self.label_smoothing, self.sample_length = label_smoothing, sample_length
        self.sums = torch.zeros(3, dtype=torch.float64)  # nats, targets and texts of a validation

    @property
    def decoder(self) -> TextDecoder:
        return cast(TextDecoder, self.model)

    @property
    def corpus(self) -> Corpus:
        return cast(Corpus, self.data)

    @property
    def score(self) -> str:
        return "val/score"

    def adapt(self, data: Data) -> None:
        if not isinstance(data, Corpus):
            raise ValueError(f"data must be vitkit.data.corpus.Corpus for LanguageModelling, got {type(data).__name__}")
        check_vocabulary(self.decoder, data.tokenizer)

    def simplify(self) -> None:
        self.label_smoothing = 0.0

    def compile_model(self) -> None:
        self.decoder.encoder.compile()

    def compute_loss(self, batch: WindowBatch) -> Loss:
        smoothing = self.label_smoothing if self.training else 0.0
        features = encode_windows(self.decoder, batch)
        return Loss(*next_token(features, batch.targets, self.decoder.logits, smoothing=smoothing))

    def compute_floor(self, batch: WindowBatch) -> float:
        """Return the mean entropy of the ids that follow equal beginnings of windows and texts."""
        following: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        documents = torch.zeros_like(batch.ids) if batch.documents is None else batch.documents
        for row in zip(batch.ids.tolist(), batch.targets.tolist(), documents.tolist(), strict=True):
            past: tuple[int, ...] = ()
            document = None
            for number, target, now in zip(*row, strict=True):
                past, document = (number,) if now != document else (*past, number), now
                if target != IGNORED:
                    following[past][target] += 1
        groups = [torch.tensor([*counts.values()], dtype=torch.float64) for counts in following.values()]
        nats = sum(-(counts * (counts / counts.sum()).log()).sum().item() for counts in groups)
        return nats / max(1, sum(int(counts.sum()) for counts in groups))

    def compute_chance(self, batch: WindowBatch) -> Chance:
        size = self.decoder.embed.tokens.num_embeddings
        return Chance(math.log(size), f"{math.log(size):.4g}, the loss of equal probabilities of {size:,} ids")

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        # Here, as at the end of the epoch averaged weights are swapped out again.
        if self.sample_length and self.trainer.is_global_zero and not self.trainer.sanity_checking:
            with self.trainer.precision_plugin.val_step_context():
                self.write_sample(Path(self.trainer.default_root_dir) / SAMPLES)

    @torch.no_grad()
    def write_sample(self, path: Path) -> None:
        """Append a text of the model, drawn from its start on, under the optimiser step; and show it in TensorBoard."""
        tokenizer, step = self.corpus.tokenizer, self.global_step
        vocabulary, context = tokenizer.vocabulary, self.decoder.embed.context
        ids = generate(
            self.decoder,
            self.decoder.prompt(torch.tensor([[self.corpus.start]], device=self.device)),
            min(self.sample_length, context - 1),
            sample=Sampling(generator=torch.Generator(self.device).manual_seed(0)),
            edits=[lambda past, logits: logits[:, : vocabulary.size]],  # a model may have more
            stop=[vocabulary.end],
        ).ids[0]
        text = tokenizer.decode(ids.tolist())
        before = path.read_text("utf-8") if path.exists() else ""
        sections = [section for section in HEADING.split(before) if section]
        earlier = [(old, sample) for old, sample in zip(sections[::2], sections[1::2], strict=True) if int(old) < step]
        rows = [*earlier, (str(step), f"\n{text}\n\n")]  # a resumed run writes later ones again
        write_text(path, "".join(f"=== step {old} ==={sample}" for old, sample in rows))
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("sample", text, step)

    def validation_step(self, batch: WindowBatch, batch_idx: int) -> None:
        loss = self.compute_loss(batch)
        texts = (batch.ids == self.corpus.start) & (batch.targets != IGNORED)
        self.sums += self.sums.new_tensor([loss.total.item(), loss.terms, texts.sum().item()])

    def on_validation_epoch_end(self) -> None:
        nats, terms, texts = self.trainer.strategy.reduce(self.sums, reduce_op="sum").tolist()
        if self.trainer.sanity_checking:  # of two batches
            return
        loss = nats / terms
        bits = loss / math.log(2) / self.corpus.bytes_per_target
        self.validated = int(texts)
        perplexity = torch.tensor(loss).exp().item()
        self.metrics = {"val/loss": loss, "val/bits_per_byte": bits, "val/perplexity": perplexity, "val/score": -bits}
        # The values are equal on all ranks; max keeps them exact.
        for name, value in self.metrics.items():
            self.log(name, value, prog_bar=name in ("val/loss", "val/bits_per_byte"), sync_dist=True, reduce_fx="max")

    def summarize(self, run: Path, weights: str, baselines: bool) -> RunSummary:
        bits = self.metrics["val/bits_per_byte"]
        rows = [(weights, f"{bits:.3f}"), ("perplexity of an id", f"{self.metrics['val/perplexity']:.2f}")]
        numbers: dict[str, Any] = {"baselines": {}, "worse_than_baselines": []}
        if baselines:
            training, held_out = (join_texts([*self.corpus.read_texts(side)]) for side in (False, True))
            numbers["baselines"] = score_text_baselines(training, held_out)
            numbers["worse_than_baselines"] = list_lower_baselines(bits, numbers["baselines"])
            rows += [(f"  {name}", f"{value:.3f}") for name, value in numbers["baselines"].items()]
            rows += [(sentence, "") for sentence in numbers["worse_than_baselines"]]
        return RunSummary(
            f"bits per byte of {self.data.validation_title}, {format_count(self.validated, 'texts')}",
            rows,
            numbers,
            f"{f'samples: {run}/{SAMPLES}; ' if self.sample_length else ''}vitkit evaluate {run}/model TEXTS\n"
            f'vitkit complete {run}/model "the first words"',
        )


def check_vocabulary(decoder: TextDecoder, tokenizer: Tokenizer) -> None:
    """Compare a tokenizer with a decoder. Raises: ValueError that lists all differences."""
    context, size = decoder.embed.context, decoder.embed.tokens.num_embeddings
    count = tokenizer.vocabulary.size
    rules = {
        f"model.model.context must be that of data.tokenizer, {tokenizer.context}, got {context}": (
            context == tokenizer.context
        ),
        f"model.model.vocabulary must be at least {count:,}, the ids of vocabulary={tokenizer.name}, got {size:,}": (
            count <= size
        ),
    }
    if problems := [rule for rule, holds in rules.items() if not holds]:
        raise ValueError("; ".join(problems))
