"""The bits that a language model needs for each byte of texts. B windows, T ids, V vocabulary."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_tokenizer
from vitkit.bundle.record_file import read_record
from vitkit.convert.open import open_text_decoder
from vitkit.data.annotations.documents import DOCUMENTS
from vitkit.data.batches import Reading
from vitkit.data.corpus import IGNORED, ScoredWindows, WindowBatch
from vitkit.data.omissions import Omissions
from vitkit.data.order import ValidationOrder
from vitkit.data.pictures import Loader, iterate_loader
from vitkit.data.sample_selection import format_selection, select_all, select_held_out
from vitkit.data.sources.open import open_source
from vitkit.data.token_stream import make_stream, scan_documents
from vitkit.evaluation.figures import draw_positions
from vitkit.models import TextDecoder
from vitkit.nn import masks
from vitkit.support.devices import get_device
from vitkit.support.errors import format_count
from vitkit.support.progress import make_progress_bar

POSITIONS = "positions.png"


class TextEvaluation(NamedTuple):
    """The result of an evaluation.

    Args:
        numbers: the content of report.json. `bits_by_position` is the mean loss of the ids with so many ids before
            them in their window and text, also of those that another window counts.
        omissions: the files and texts that were left out.
    """

    numbers: dict[str, Any]
    omissions: Omissions


@torch.no_grad()
def evaluate_texts(
    model: str | Path | Bundle,
    source: str,
    *,
    fold: int | None = None,
    folds: int = 5,
    column: str | None = None,
    reading: Reading | None = None,
) -> TextEvaluation:
    """Return the bits per byte and the perplexity of texts, each id predicted once with half a context before it.

    Args:
        fold, folds: evaluate only the part that training with these numbers holds out.
        column: see `vitkit.data.corpus.Corpus`.

    Raises: ValueError if no text can be read.
    """
    reading = reading or Reading()
    reading.check()
    bundle = open_text_decoder(model)
    decoder, tokenizer = cast(TextDecoder, bundle.model).to(get_device(reading.device)), get_tokenizer(bundle)
    texts = open_source(source, DOCUMENTS, None if column is None else (column,), reading.exclude)
    record = read_record(bundle.source)
    if fold is None:
        selection = select_all(record, texts, range(len(texts)))
    else:
        selection = select_held_out(record, texts, DOCUMENTS.split(texts, folds, fold), fold, folds)
    omissions = Omissions()
    omissions.update(texts.omissions)
    documents = scan_documents(texts, selection.samples, omissions)
    if not documents:
        raise ValueError("; ".join(["source must hold a text that can be read, got none", *omissions.unreadable[:1]]))
    stream = make_stream(texts, documents, tokenizer)
    windows = ScoredWindows(stream, decoder.embed.context, bool(tokenizer.vocabulary.begin))
    loader = Loader(windows, ValidationOrder(range(len(windows)), reading.batch), reading.workers)
    nats, targets = 0.0, 0
    losses_by_position, ids_by_position = torch.zeros(2, decoder.embed.context, dtype=torch.float64)
    with make_progress_bar(len(windows), "windows", " windows") as progress:
        for batch in iterate_loader(loader):
            losses, counted = compute_losses(decoder, batch), batch.targets != IGNORED
            nats, targets = nats + losses[counted].sum().item(), targets + int(counted.sum())
            places = torch.arange(losses.shape[1]).expand_as(losses) if batch.positions is None else batch.positions
            present = torch.ones_like(losses)
            present[:, -1] = counted[:, -1]
            for total, values in ((losses_by_position, losses), (ids_by_position, present)):
                total += places.flatten().bincount(values.flatten(), len(total))
            progress.update(len(batch.ids))
    size = sum(document.size for document in documents.values())
    numbers: dict[str, Any] = {"model": bundle.source, "source": source, "fold": fold, "folds": folds}
    numbers |= {"texts": len(documents), "bytes": size, "ids": targets, **selection.count_readable(documents)}
    numbers |= {"bits_per_byte": nats / size / math.log(2), "perplexity": math.exp(nats / targets)}
    by_position = losses_by_position[ids_by_position > 0] / ids_by_position[ids_by_position > 0] / math.log(2)
    return TextEvaluation(numbers | {"bits_by_position": by_position.tolist()}, omissions)


def encode_windows(decoder: TextDecoder, batch: WindowBatch) -> Float[Tensor, "B T D"]:
    """Return the features of windows, in which no id attends to another text."""
    mask = None if batch.documents is None else masks.documents(batch.documents, batch.documents)
    return decoder.features(*decoder.embed(batch.ids, batch.positions), mask=mask)


def compute_losses(decoder: TextDecoder, batch: WindowBatch) -> Float[Tensor, "B T"]:
    """Return the loss of every id of windows, in nats, in float64 on the CPU; of a last one that does not count 0.

    The targets of the others are in the window, also where another window counts them.
    """
    device = decoder.embed.tokens.weight.device
    targets = torch.cat([batch.ids[:, 1:], batch.targets[:, -1:]], dim=1).to(device)
    parts = (batch.ids, batch.positions, batch.documents)
    ids, positions, documents = (None if part is None else part.to(device) for part in parts)
    features = encode_windows(decoder, batch._replace(ids=ids, positions=positions, documents=documents))
    rows = zip(features, targets, strict=True)  # one by one: all logits may be larger than the model
    losses = [F.cross_entropy(decoder.logits(row).float(), target, reduction="none") for row, target in rows]
    return torch.stack(losses).cpu().double()


def format_text_evaluation(numbers: Mapping[str, Any]) -> str:
    """Return the summary of an evaluation as lines of text."""
    part = "" if numbers["fold"] is None else f", fold {numbers['fold']} of {numbers['folds']}"
    count, size, ids = (format_count(numbers[unit], unit) for unit in ("texts", "bytes", "ids"))
    lines = [f"{count} of {numbers['source']}{part}, {size}, {ids}", *format_selection(numbers, "texts")]
    lines += [f"{'bits per byte':<30}{numbers['bits_per_byte']:>8.3f}"]
    return "\n".join([*lines, f"{'perplexity of an id':<30}{numbers['perplexity']:>8.2f}"])


def write_text_files(numbers: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Draw the loss by position, and yield the name of the figure."""
    draw_positions(numbers["bits_by_position"], folder / POSITIONS)
    yield POSITIONS
