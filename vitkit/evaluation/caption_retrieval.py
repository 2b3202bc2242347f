"""Retrieval between images and captions by a CLIP. N readable images, U texts, E embedding."""

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_preprocess, get_tokenizer
from vitkit.bundle.record_file import read_record
from vitkit.convert.open import open_pair_model
from vitkit.data.annotations.captions import CAPTIONS, TEXT_COLUMNS, Captioned
from vitkit.data.batches import Reading, read_batches
from vitkit.data.sample_selection import format_selection, select_all, select_held_out
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import Source
from vitkit.evaluation import retrieval_sheets
from vitkit.evaluation.recall import TILE, Retrieval, format_recall_rows, pair_captions, retrieve
from vitkit.evaluation.report import write_csv
from vitkit.inference.embeddings import encode_rows
from vitkit.models.parts import require_pair_model
from vitkit.support.devices import get_device
from vitkit.support.errors import format_count
from vitkit.support.progress import make_progress_bar


class RetrievalEvaluation(NamedTuple):
    """The result of an evaluation; `numbers` is the content of report.json."""

    numbers: dict[str, Any]
    retrieval: Retrieval


def evaluate_pairs(
    model: str | Path | Bundle,
    source: str | Captioned,
    *,
    fold: int | None = None,
    folds: int = 5,
    own_only: bool = False,
    overflow: str = "warn",
    columns: tuple[str, str] = TEXT_COLUMNS,
    reading: Reading | None = None,
) -> RetrievalEvaluation:
    """Return the recall in both directions by Karpathy's protocol.

    A caption retrieves its image; an image retrieves any of its captions.

    Args:
        fold, folds: evaluate only the part that training with these numbers holds out.
        own_only: equal captions of two images stay two texts, each a positive of its own image alone, as in published
            results. Otherwise they are one text, a positive of every image that has it.
        overflow: the policy for captions that do not fit, see Tokenizer.
    """
    reading = reading or Reading()
    reading.check()
    bundle = open_pair_model(model)
    captioned = open_source(source, CAPTIONS, columns, reading.exclude) if isinstance(source, str) else source
    record, pictures = read_record(bundle.source), captioned.pictures
    if fold is None:
        selection = select_all(record, pictures, range(len(pictures)))
    else:
        split = CAPTIONS.split(captioned, folds, fold)
        selection = select_held_out(record, pictures, split, fold, folds, captioned.groups)
    bundle.model.to(get_device(reading.device))
    images, indices, unreadable = encode_images(bundle, pictures, selection.samples, reading)
    captions, pairs = pair_captions([captioned.captions[index] for index in indices], own_only)
    texts, cut = encode_captions(bundle, captions, overflow)
    retrieval = retrieve(indices, images, captions, texts, pairs)
    name = source if isinstance(source, str) else format_count(len(captioned.captions), "pictures")
    numbers: dict[str, Any] = {"model": bundle.source, "source": name, "fold": fold, "folds": folds}
    numbers |= {"pictures": len(images), "unreadable": unreadable, **selection.count_readable(indices)}
    numbers |= {"captions": len(captions), "cut": cut, "own_only": own_only}
    return RetrievalEvaluation(numbers | retrieval.compute_metrics(), retrieval)


@torch.no_grad()
def encode_images(
    bundle: Bundle, source: Source, samples: Sequence[int], reading: Reading
) -> tuple[Float[Tensor, "N E"], list[int], list[str]]:
    """Return the embeddings of readable images, their indices, and a line for each unreadable one.

    Raises: ValueError if none is readable.
    """
    model, preprocess = require_pair_model(bundle.model), get_preprocess(bundle)
    weight = next(model.parameters())
    embeddings: list[Tensor] = []
    indices: list[int] = []
    unreadable: list[str] = []
    for batch in read_batches(source, samples, preprocess, reading, "pictures"):
        unreadable += batch.skipped
        if len(batch.indices):
            embeddings.append(model.encode_image(batch.images.to(weight)))
            indices += batch.indices.tolist()
    if not embeddings:
        raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(unreadable[:1])}")
    return torch.cat(embeddings), indices, unreadable


def encode_captions(bundle: Bundle, captions: Sequence[str], overflow: str) -> tuple[Float[Tensor, "U E"], int]:
    """Return the embeddings of captions, and the number of captions that were cut."""
    tokenizer = copy(get_tokenizer(bundle))
    tokenizer.overflow = overflow
    rows, cut = tokenizer.encode_and_cut(captions)
    tokenizer.check_cut(captions, cut)
    with make_progress_bar(len(rows), "captions", " captions") as progress:
        return encode_rows(require_pair_model(bundle.model), tokenizer, rows, advance=progress.update), len(cut)


def format_retrieval(numbers: dict[str, Any]) -> str:
    """Return the summary of a retrieval evaluation as lines of text."""
    part = "" if numbers["fold"] is None else f", fold {numbers['fold']} of {numbers['folds']}"
    texts = "captions, each of its own picture" if numbers["own_only"] else "different captions"
    lines = [
        f"{format_count(numbers['pictures'], 'pictures')} of {numbers['source']} "
        f"with {format_count(numbers['captions'], texts)}{part}"
    ]
    lines += format_selection(numbers)
    rows = [*format_recall_rows(numbers), ("mean recall", f"{numbers['mean_recall']:.2%}")]
    return "\n".join([*lines, *(f"{name:<24}{value}" for name, value in rows)])


def write_retrieval_files(retrieval: Retrieval, bundle: Bundle, source: Source, folder: Path) -> Iterator[str]:
    """Write tables and contact sheets, and yield the name of each when it is written."""
    names = [source.get_name(index) for index in retrieval.indices]
    to_text, to_image = (ranks.tolist() for ranks in retrieval.ranks.values())
    firsts = find_nearest(retrieval.texts, retrieval.images), find_nearest(retrieval.images, retrieval.texts)
    lines = zip(retrieval.captions, to_image, (names[row] for row in firsts[0]), strict=True)
    yield write_csv(folder / "captions.csv", ["caption", "rank", "first"], lines)
    lines = zip(names, to_text, (retrieval.captions[row] for row in firsts[1]), strict=True)
    yield write_csv(folder / "pictures.csv", ["name", "rank", "first"], lines)
    retrieval_sheets.draw_captions_with_images(retrieval, source, get_preprocess(bundle), folder / "captions.png")
    yield "captions.png"
    retrieval_sheets.draw_images_with_captions(retrieval, source, get_preprocess(bundle), folder / "pictures.png")
    yield "pictures.png"


def find_nearest(queries: Float[Tensor, "Q E"], items: Float[Tensor, "M E"]) -> list[int]:
    """Return the item with the highest score for each query."""
    parts = queries.split(max(1, TILE // len(items)))
    return torch.cat([(part @ items.T).argmax(1) for part in parts]).tolist()


def open_captions(source: str, columns: tuple[str, str], bundle: Bundle, exclude: Sequence[str] = ()) -> Captioned:
    try:
        return open_source(source, CAPTIONS, columns, exclude)
    except ValueError as error:
        raise ValueError(f"{error}; with class labels take vitkit zero-shot {bundle.source} {source}") from None
