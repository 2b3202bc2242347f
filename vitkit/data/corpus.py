"""The DataModule of texts for a language model: windows of their ids. B windows, T ids."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.data.annotations.documents import DOCUMENTS
from vitkit.data.data_module import Data
from vitkit.data.duplicates import match_keys
from vitkit.data.omissions import Omissions
from vitkit.data.order import Pick, derive_seed
from vitkit.data.sample_record import SampleLog, SampleRecord, divide_samples
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import Source
from vitkit.data.token_stream import TokenStream, make_stream, read_document, scan_documents
from vitkit.data.tokenizer import BYTES, Tokenizer
from vitkit.support.errors import InputWarning

IGNORED = -100  # a target that does not count, as in PyTorch
COMPARED = 10_000  # characters of a text that a vocabulary must decode as they were


class WindowBatch(NamedTuple):
    """Windows of texts.

    Args:
        ids: of each window but for the last, which is only a target.
        targets: the id behind each of them; IGNORED where it does not count.
        positions, documents: the position of each id in its text or, of a text that began before the window, in the
            window; and the number of its text. None where no text begins within a window: positions are then 0, 1, ...
        indices: of the texts that the windows begin in.
        skipped, digests: as in Batch; empty, as all texts are read before.
    """

    ids: Int64[Tensor, "B T"]
    targets: Int64[Tensor, "B T"]
    positions: Int64[Tensor, "B T 1"] | None
    documents: Int64[Tensor, "B T"] | None
    indices: Int64[Tensor, " B"]
    skipped: tuple[str, ...] = ()
    digests: Mapping[int, int] = {}


class Windows(Dataset[WindowBatch]):
    """Windows of `context + 1` ids. In each epoch the first begins at another id, and each later one `context` behind.

    The texts are a ring: behind the last the first begins again. So every id is a target in every epoch.

    Args: closed: texts have an end of their own, which does not predict the start of the next one.
    """

    def __init__(self, stream: TokenStream, context: int, closed: bool, seed: int = 0) -> None:
        self.stream, self.context, self.closed, self.seed = stream, context, closed, seed

    def __len__(self) -> int:
        return -(-len(self.stream) // self.context)

    def count_targets(self) -> int:
        """Return the number of different targets."""
        return len(self.stream) - (len(self.stream.starts) if self.closed else 0)

    def place(self, pick: Pick) -> tuple[int, range]:
        """Return the place of a window's first id, and which of its targets count."""
        shift = derive_seed(self.seed, pick.epoch) % self.context
        return shift + pick.sample * self.context, range(self.context)

    def __getitem__(self, picks: Sequence[Pick]) -> WindowBatch:
        places = [self.place(pick) for pick in picks]
        rows = [self.stream.read_ids(first, self.context + 1) for first, _ in places]
        windows = torch.from_numpy(np.array(rows, np.int64).reshape(-1, self.context + 1))
        ids, targets = windows[:, :-1], torch.full((len(rows), self.context), IGNORED)
        for row, window, (_, counted) in zip(targets, windows, places, strict=True):
            row[counted.start : counted.stop] = window[counted.start + 1 : counted.stop + 1]
        if self.closed:
            targets[targets == self.stream.start] = IGNORED
        indices = torch.tensor([self.stream.find_sample(first) for first, _ in places], dtype=torch.int64)
        return WindowBatch(ids, targets, *number_documents(ids, self.stream.start), indices)


class ScoredWindows(Windows):
    """Windows that count every id once as a target, with half a context before it where its text is so long."""

    @property
    def stride(self) -> int:
        return max(1, self.context // 2)

    def __len__(self) -> int:
        return -(-max(0, len(self.stream) - self.context) // self.stride) + min(1, len(self.stream))

    def place(self, pick: Pick) -> tuple[int, range]:
        last = max(0, len(self.stream) - self.context)
        first = min(pick.sample * self.stride, last)
        counted = (pick.sample - 1) * self.stride + self.context if pick.sample else 0
        return first, range(counted - first, min(self.context, len(self.stream) - first))


def number_documents(ids: Int64[Tensor, "B T"], start: int) -> tuple[Tensor | None, Tensor | None]:
    """Return the positions and the documents of a `WindowBatch`."""
    starts = ids == start
    if not starts[:, 1:].any():
        return None, None
    places = torch.arange(ids.shape[1]).expand_as(ids)
    return (places - torch.where(starts, places, 0).cummax(dim=1).values)[..., None], starts.cumsum(dim=1)


class Corpus(Data):
    """Texts, split into training and validation. Batches hold windows of `tokenizer.context` ids.

    The id that starts a text, the end of the one before, stands between texts, and no id attends to another text: a
    text among others is predicted as it is alone. Line ends are read as \\n. Texts that are empty or not in UTF-8 are
    left out and counted. The ids of 16 MB of texts and more are kept in a file in `get_token_folder()`.

    Args:
        train, val: the sources of texts: a .txt, a folder of them, a column `text` of a table or data set, shards with
            x.txt, or `python`; see `open_source`. Without val, fold `fold` of `folds` is held out, whole texts.
        tokenizer: of the texts, with the context of the model; by default of bytes, with a context of 128. A vocabulary
            that is a number is trained on the training texts alone.
        batch: windows a step and rank.
        column: the column of a table that holds the texts, or the extension of a shard's members.
        exclude: patterns of files to leave out, see `open_source`.
        seed: of the order and of the places of windows, not of the split.

    Raises: ValueError, one line, as soon as it is made.
    """

    unit: ClassVar[str] = "texts"
    item: ClassVar[str] = "windows"

    def __init__(
        self,
        train: str,
        val: str | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        batch: int = 32,
        folds: int = 5,
        fold: int = 0,
        column: str | None = None,
        exclude: str | Sequence[str] = (),
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        columns = None if column is None else (column,)
        self.source = self.held_out = open_source(train, DOCUMENTS, columns, exclude)
        if val is None:
            training, validation = DOCUMENTS.split(self.source, folds, fold)
        else:
            self.held_out = open_source(val, DOCUMENTS, columns, exclude)
            training, validation = (list(range(len(source))) for source in (self.source, self.held_out))
        self._omissions = Omissions()
        for source in dict.fromkeys((self.source, self.held_out)):
            self._omissions.update(source.omissions)
        # Of all texts that can be read, by their source.
        self.documents = {
            source: scan_documents(source, range(len(source)), self._omissions)
            for source in dict.fromkeys((self.source, self.held_out))
        }
        training = [sample for sample in training if sample in self.documents[self.source]]
        validation = [sample for sample in validation if sample in self.documents[self.held_out]]
        for side, samples in (("train", training), ("the validation set", validation)):
            if not samples:
                lines = self._omissions.format(len(self.source), self.unit, shown=1)
                raise ValueError("; ".join([f"{side} must hold a text that can be read, got none", *lines]))
        texts = (read_document(self.source, sample) for sample in training)
        self._tokenizer = (tokenizer or Tokenizer(128, vocabulary=BYTES)).train(texts)
        warn_of_loss(self._tokenizer, read_document(self.held_out, validation[0]))
        super().__init__(
            training,
            validation,
            training_samples=self.make_windows(Windows, self.source, training, seed),
            validation_samples=self.make_windows(ScoredWindows, self.held_out, validation),
            batch=batch,
            fold=fold,
            workers=workers,
            seed=seed,
        )

    def make_windows(self, kind: type[Windows], source: Source, samples: Sequence[int], seed: int = 0) -> Windows:
        documents = {sample: self.documents[source][sample] for sample in samples}
        stream = make_stream(source, documents, self._tokenizer)
        return kind(stream, self._tokenizer.context, bool(self._tokenizer.vocabulary.begin), seed)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def omissions(self) -> Omissions:
        omissions = Omissions()
        omissions.update(self._omissions)
        return omissions

    @property
    def training_items(self) -> Sequence[int]:
        return range(len(cast(Windows, self.training_samples)))

    @property
    def validation_items(self) -> Sequence[int]:
        return range(len(cast(Windows, self.validation_samples)))

    @property
    def start(self) -> int:
        """The id in front of each text."""
        return cast(Windows, self.training_samples).stream.start

    @property
    def bytes_per_target(self) -> float:
        """The bytes of the validation texts, in UTF-8, for each id that is predicted."""
        size = sum(self.documents[self.held_out][sample].size for sample in self.validation)
        return size / cast(Windows, self.validation_samples).count_targets()

    def name_sample(self, sample: int) -> str:
        return self.source.get_name(sample)

    def name_validation_sample(self, sample: int) -> str:
        return self.held_out.get_name(sample)

    def read_texts(self, held_out: bool) -> Iterator[str]:
        """Yield the texts of training or validation."""
        source, samples = (self.held_out, self.validation) if held_out else (self.source, self.training)
        return (read_document(source, sample) for sample in samples)

    def find_duplicates(self) -> list[tuple[int, int]]:
        return match_keys(
            {sample: self.documents[self.source][sample].digest for sample in self.training},
            {sample: self.documents[self.held_out][sample].digest for sample in self.validation},
        )

    def start_log(self, record: SampleRecord) -> None:
        sides = divide_samples(record, self.source, self.held_out, self.training, self.validation)
        self.log = SampleLog((self.source, self.held_out), sides, record.folds, record.fold)
        for held_out, source in enumerate((self.source, self.held_out)):
            samples = sides.validation if held_out else sides.training
            self.log.add(bool(held_out), {sample: self.documents[source][sample].digest for sample in samples})
        if len(record.keys):  # else the samples stay in their order, and the tokenizer is that of these
            self.training, self.validation = sides.training, sides.validation
            self.training_samples = self.make_windows(Windows, self.source, self.training, self.seed)
            self.validation_samples = self.make_windows(ScoredWindows, self.held_out, self.validation)


def warn_of_loss(tokenizer: Tokenizer, text: str) -> None:
    """Warn of a vocabulary that does not spell a text exactly, whose bits per byte are then too few."""
    (ids,) = tokenizer.encode([text[:COMPARED]])
    if tokenizer.decode(ids) != text[:COMPARED]:
        warnings.warn(
            f"the vocabulary {tokenizer.name} does not keep texts exactly: bits per byte are not comparable",
            InputWarning,
            stacklevel=2,
        )
