"""A training without images, by class path: the next byte of a text. N windows, T ids.

The texts are the manual topics that every CPython ships, or the .txt files of a folder; some are held out whole.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import Dataset

from vitkit.data.data_module import Data
from vitkit.data.duplicates import match_keys
from vitkit.data.order import Draw, Labels, Pick, derive_seed
from vitkit.data.tokenizer import Tokenizer
from vitkit.tasks.task import Loss, RunSummary, Task

END = 256


class WindowBatch(NamedTuple):
    """Windows of texts, each closed by END, and the byte behind each. The rest as in vitkit's Batch."""

    ids: Tensor  # (N, T)
    following: Tensor  # (N,)
    indices: Tensor  # of the texts
    skipped: tuple[str, ...] = ()


class Windows(Dataset[WindowBatch]):
    """Bytes of texts, in windows of `context`.

    Args: most: windows of a text, drawn by the seed; None takes every fourth, always the same.
    """

    def __init__(self, texts: dict[str, bytes], context: int, most: int | None, seed: int) -> None:
        self.names, self.texts = [*texts], [*texts.values()]
        self.context, self.most, self.seed = context, most, seed

    def __getitem__(self, picks: Sequence[Pick]) -> WindowBatch:
        rows, indices, skipped = [torch.zeros(0, self.context + 1, dtype=torch.int64)], list[int](), list[str]()
        for pick in picks:
            text = torch.tensor([*self.texts[pick.sample]], dtype=torch.int64)
            if len(text) <= self.context:
                skipped.append(f"text must be longer than {self.context} bytes, got {self.names[pick.sample]}")
                continue
            indices.append(pick.sample)
            rows.append(text.unfold(0, self.context + 1, 1)[self.places(len(text) - self.context, pick)])
        windows = torch.cat(rows)
        ends = torch.full((len(windows), 1), END)
        ids = torch.cat([windows[:, :-1], ends], dim=1)
        return WindowBatch(ids, windows[:, -1], torch.tensor(indices, dtype=torch.int64), tuple(skipped))

    def places(self, count: int, pick: Pick) -> Tensor:
        """Return where windows begin: more of them in longer texts, so that batches have unequal numbers."""
        if self.most is None:
            return torch.arange(0, count, 4)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, *pick))
        return torch.randint(count, (min(self.most, 1 + count // 64),), generator=generator)


class Texts(Data):
    """Args: train: a folder of .txt files in place of the topics. context: bytes of a window. windows: of a text."""

    unit: ClassVar[str] = "texts"

    def __init__(
        self,
        train: str | None = None,
        *,
        context: int = 8,
        windows: int = 48,
        batch: int = 8,
        folds: int = 8,
        fold: int = 0,
        draw: Draw | None = None,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        paths = [] if train is None else sorted(Path(train).glob("*.txt"))
        texts = {str(path): path.read_bytes() for path in paths}
        texts = texts or {f"topics[{name}]": topics[name].encode() for name in sorted(topics)}
        places = range(len(texts))
        training = [place for place in places if place % folds != fold]
        self.windows = Windows(texts, context, windows, seed)
        super().__init__(
            training,
            [place for place in places if place % folds == fold],
            training_samples=self.windows,
            validation_samples=Windows(texts, context, None, seed),
            batch=batch,
            fold=fold,
            draw=draw,
            workers=workers,
            seed=seed,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.windows.context + 1, vocabulary="bytes")

    @property
    def training_labels(self) -> Labels:
        return self.training

    def name_sample(self, sample: int) -> str:
        return self.windows.names[sample]

    def find_duplicates(self) -> list[tuple[int, int]]:
        training, validation = (
            {sample: self.windows.texts[sample] for sample in samples} for samples in (self.training, self.validation)
        )
        return match_keys(training, validation)

    def count_bytes(self, samples: Sequence[int]) -> Tensor:
        """Return how often each byte is in these texts."""
        joined = b"".join(self.windows.texts[sample] for sample in samples)
        return torch.tensor([*joined], dtype=torch.int64).bincount(minlength=256).double()


class NextByte(Task):
    """Predict the byte behind a window. Validates by minus the bits per byte of held-out texts."""

    def __init__(self, model: nn.Module, **task: Any) -> None:
        super().__init__(model, **task)
        self.sums = torch.zeros(3, dtype=torch.float64)  # nats, bytes and texts of a validation

    @property
    def score(self) -> str:
        return "val/score"

    def adapt(self, data: Data) -> None:
        if not isinstance(data, Texts):
            raise ValueError(f"data must be byte_texts.Texts for NextByte, got {type(data).__name__}")

    def compute_loss(self, batch: WindowBatch) -> Loss:
        logits = self.model(batch.ids)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return Loss(F.cross_entropy(logits, batch.following, reduction="sum"), len(batch.following))

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: WindowBatch, batch_idx: int) -> None:
        if len(batch.indices):
            loss = self.compute_loss(batch)
            self.sums += self.sums.new_tensor([loss.total.item(), loss.terms, len(batch.indices)])

    def on_validation_epoch_end(self) -> None:
        nats, count, texts = self.trainer.strategy.reduce(self.sums, reduce_op="sum").tolist()
        if self.trainer.sanity_checking:
            return
        loss = nats / count
        self.validated, self.metrics = int(texts), {"val/loss": loss, "val/score": -loss / math.log(2)}
        self.log_dict(self.metrics, prog_bar=True, sync_dist=True, reduce_fx="max")

    def summarize(self, run: Path, weights: str, baselines: bool) -> RunSummary:
        data = cast(Texts, self.data)
        known, asked = (data.count_bytes(samples) for samples in (data.training, data.validation))
        unigram = -(asked @ ((known + 1) / (known + 1).sum()).log2() / asked.sum()).item()
        rows = {weights: -self.metrics["val/score"], "single bytes": unigram}
        return RunSummary(
            f"bits per byte of {self.validated} texts held out",
            [(name, f"{bits:.3f}") for name, bits in rows.items()],
            {"single_bytes": unigram},
            f"the model is in {run}/model",
        )


class Gradients(Callback):
    """Write the gradients of each step, as the optimiser has them, into the run folder."""

    def __init__(self) -> None:
        self.steps: list[list[Tensor]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        gradients = [parameter.grad for parameter in pl_module.parameters()]
        self.steps.append([gradient.clone() for gradient in gradients if gradient is not None])

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            torch.save(self.steps, Path(trainer.default_root_dir) / "gradients.pt")
