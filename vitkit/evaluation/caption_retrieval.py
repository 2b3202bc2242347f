"""Retrieval between images and captions by a CLIP.

N images that could be read, U texts, P pairs of an image and a text, E embedding.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_preprocess, get_tokenizer
from vitkit.convert.open import open_pair_model
from vitkit.data.annotations.captions import (
    CAPTIONS,
    TEXT_COLUMNS,
    Captioned,
    by_spelling,
    normalise_caption,
    split_kin,
)
from vitkit.data.batches import Reading, batches
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import Source
from vitkit.evaluation import retrieval_sheets
from vitkit.evaluation.recall import TILE, TOP, Recall, recall
from vitkit.evaluation.report import write_csv
from vitkit.inference.embeddings import encode_rows
from vitkit.models.parts import pair_model
from vitkit.support import contact_sheet
from vitkit.support.devices import present
from vitkit.support.progress import bar


class Matched(NamedTuple):
    """`numbers` is what report.json holds; `indices` are the pictures' places in the source.

    Args: pairs: rows of `images` and of `captions` that belong together.
    """

    numbers: dict[str, Any]
    images: Float[Tensor, "N E"]
    indices: Int64[Tensor, " N"]
    texts: Float[Tensor, "U E"]
    captions: tuple[str, ...]
    pairs: Int64[Tensor, "P 2"]
    to_text: Recall
    to_image: Recall


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
) -> Matched:
    """Recall both ways by Karpathy's protocol: each caption asks for its picture, each picture for any of its captions.

    Args:
        fold, folds: only the part that training with these numbers holds out.
        own_only: as published numbers have it, equal captions of two pictures are two texts, and only that of its own
            picture counts. Otherwise they are one, and every picture that has it counts.
        overflow: of captions that do not fit: see Tokenizer.
    """
    reading = reading or Reading()
    reading.check()
    bundle = open_pair_model(model)
    captioned = open_source(source, CAPTIONS, columns) if isinstance(source, str) else source
    samples = range(len(captioned.captions)) if fold is None else split_kin(captioned.kin, folds, fold)[1]
    bundle.model.to(present(reading.device))
    images, indices, skipped = encode_pictures(bundle, captioned.pictures, samples, reading)
    captions, pairs = paired([captioned.captions[index] for index in indices.tolist()], own_only)
    texts, cut = encode_captions(bundle, captions, overflow)
    pairs = pairs.to(images.device)
    to_text, to_image = recall(images, texts, pairs), recall(texts, images, pairs.flip(1))
    name = source if isinstance(source, str) else f"{len(captioned.captions):,} pictures"
    numbers: dict[str, Any] = {"model": bundle.source, "source": name, "fold": fold, "folds": folds}
    numbers |= {"pictures": len(images), "unreadable": skipped}
    numbers |= {"captions": len(captions), "cut": cut, "own_only": own_only}
    numbers |= {"image_to_text": plain(to_text), "text_to_image": plain(to_image)}
    numbers["mean_recall"] = mean([*to_text.at.values(), *to_image.at.values()])
    return Matched(numbers, images.cpu(), indices, texts.cpu(), captions, pairs.cpu(), to_text, to_image)


@torch.no_grad()
def encode_pictures(
    bundle: Bundle, source: Source, samples: Sequence[int], reading: Reading
) -> tuple[Float[Tensor, "N E"], Int64[Tensor, " N"], list[str]]:
    """Embeddings, the samples that they are of, and a line for each that could not be read.

    Raises: ValueError if none could.
    """
    model, preprocess = pair_model(bundle.model), get_preprocess(bundle)
    weight = next(model.parameters())
    found: list[Tensor] = []
    indices: list[Tensor] = []
    skipped: list[str] = []
    for batch in batches(source, samples, preprocess, reading, "pictures"):
        skipped += batch.skipped
        if len(batch.indices):
            found.append(model.encode_image(batch.images.to(weight)))
            indices.append(batch.indices)
    if not found:
        raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(skipped[:1])}")
    return torch.cat(found), torch.cat(indices), skipped


def paired(captions: Sequence[Sequence[str]], own_only: bool) -> tuple[tuple[str, ...], Int64[Tensor, "P 2"]]:
    """The texts, and (picture, text) of all that belong together; equal ones as `Captioned.concepts` has them."""
    rows = [(picture, text) for picture, own in enumerate(captions) for text in own]
    if own_only:
        pairs = [(picture, place) for place, (picture, _) in enumerate(rows)]
        return tuple(text for _, text in rows), torch.tensor(pairs)
    first = by_spelling(text for _, text in rows)
    places = {key: place for place, key in enumerate(first)}
    pairs = dict.fromkeys((picture, places[normalise_caption(text)]) for picture, text in rows)
    return tuple(first.values()), torch.tensor(list(pairs))


def encode_captions(bundle: Bundle, captions: Sequence[str], overflow: str) -> tuple[Float[Tensor, "U E"], int]:
    """Embeddings, and how many captions lost their ends."""
    tokenizer = copy(get_tokenizer(bundle))
    tokenizer.overflow = overflow
    rows, cut = tokenizer.rows(captions)
    tokenizer.judge(captions, cut)
    with bar(len(rows), "captions", " captions") as progress:
        return encode_rows(pair_model(bundle.model), tokenizer, rows, tell=progress.update), len(cut)


def plain(found: Recall) -> dict[str, float]:
    shares = {f"recall@{k}": share for k, share in found.at.items()}
    return {**shares, "median_rank": found.median, **{f"chance@{k}": share for k, share in found.chance.items()}}


def format_retrieval(numbers: dict[str, Any]) -> str:
    """The numbers to read first, in lines."""
    part = "" if numbers["fold"] is None else f", fold {numbers['fold']} of {numbers['folds']}"
    texts = "captions, each its own picture's" if numbers["own_only"] else "different captions"
    lines = [f"{numbers['pictures']:,} pictures of {numbers['source']} with {numbers['captions']:,} {texts}{part}"]
    lines.append(" " * 22 + "".join(f"{f'recall@{k}':>11}" for k in TOP) + f"{'median rank':>13}")
    for name, key in (("caption by picture", "image_to_text"), ("picture by caption", "text_to_image")):
        found = numbers[key]
        shares = "".join(f"{found[f'recall@{k}']:>11.2%}" for k in TOP)
        lines.append(f"{name:<22}{shares}{found['median_rank']:>13,.1f}")
        lines.append(f"{'  by chance':<22}" + "".join(f"{found[f'chance@{k}']:>11.2%}" for k in TOP))
    lines.append(f"{'mean recall':<22}{numbers['mean_recall']:>11.2%}")
    return "\n".join(lines)


def write_retrieval_files(found: Matched, bundle: Bundle, source: Source, folder: Path) -> Iterator[str]:
    """Tables and pictures, each as soon as it is there."""
    names = [source.name(index) for index in found.indices.tolist()]
    firsts = nearest(found.texts, found.images), nearest(found.images, found.texts)
    lines = zip(found.captions, found.to_image.ranks.tolist(), (names[one] for one in firsts[0]), strict=True)
    yield write_csv(folder / "captions.csv", ["caption", "rank", "first"], lines)
    lines = zip(names, found.to_text.ranks.tolist(), (found.captions[one] for one in firsts[1]), strict=True)
    yield write_csv(folder / "pictures.csv", ["name", "rank", "first"], lines)
    preprocess, together = get_preprocess(bundle), set(map(tuple, found.pairs.tolist()))

    def picture(place: int) -> Image.Image:
        return preprocess.convert(source.picture(int(found.indices[place]), (contact_sheet.TILE, contact_sheet.TILE)))

    both = retrieval_sheets.Both(found.images, found.texts, found.captions, together, picture)
    retrieval_sheets.of_captions(both, folder / "captions.png")
    yield "captions.png"
    retrieval_sheets.of_pictures(both, folder / "pictures.png")
    yield "pictures.png"


def nearest(queries: Float[Tensor, "Q E"], items: Float[Tensor, "M E"]) -> list[int]:
    """The item with the highest score for each query."""
    parts = queries.split(max(1, TILE // len(items)))
    return torch.cat([(part @ items.T).argmax(1) for part in parts]).tolist()


def captions_in(source: str, columns: tuple[str, str], bundle: Bundle) -> Captioned:
    try:
        return open_source(source, CAPTIONS, columns)
    except ValueError as error:
        raise ValueError(f"{error}; with class labels take vitkit zero-shot {bundle.source} {source}") from None
