"""Embeddings of many texts, equal ones computed once. N texts, K classes, E embedding."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP
from vitkit.models.clip import normalize_embeddings

Advance = Callable[[int], object]
MAX_PROMPTS = 2**17  # at a time: their embeddings of 512 numbers take 256 MB


class ClassEmbeddings(NamedTuple):
    """Embeddings of classes, with norm 1. Args: cut: number of prompts that did not fit and were truncated."""

    embeddings: Float[Tensor, "K E"]
    cut: int


def ignore_progress(count: int) -> None:
    """Do nothing."""


def encode_texts(
    model: CLIP, tokenizer: Tokenizer, texts: Sequence[str], *, batch: int = 256, advance: Advance = ignore_progress
) -> Float[Tensor, "N E"]:
    """Return embeddings with norm 1, on the model's device. Equal texts are encoded once, in batches of similar length.

    Args: advance: called after each batch with the number of its texts, equal ones included.
    Raises: ValueError, or a warning, for texts that do not fit, by the tokenizer's policy.
    """
    rows, cut = tokenizer.encode_and_cut(texts)
    tokenizer.check_cut(texts, cut)
    return encode_rows(model, tokenizer, rows, batch=batch, advance=advance)


@torch.no_grad()
def encode_rows(
    model: CLIP,
    tokenizer: Tokenizer,
    rows: Sequence[Sequence[int]],
    *,
    batch: int = 256,
    advance: Advance = ignore_progress,
) -> Float[Tensor, "N E"]:
    """Return the embeddings of `encode_texts` from rows of ids, those of `tokenizer.rows`."""
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got batch={batch}")
    counts = Counter(map(tuple, rows))
    order = sorted(counts, key=lambda row: (len(row), row))
    embeddings = [model.log_scale.new_zeros(0, model.text.outputs)]
    for start in range(0, len(order), batch):
        chunk = order[start : start + batch]
        embeddings.append(model.encode_text(tokenizer.pad_rows(chunk).to(model.log_scale.device)))
        advance(sum(counts[row] for row in chunk))
    indices = {row: index for index, row in enumerate(order)}
    index = torch.tensor([indices[tuple(row)] for row in rows], dtype=torch.int64, device=model.log_scale.device)
    return torch.cat(embeddings)[index]


def encode_classes(
    model: CLIP,
    tokenizer: Tokenizer,
    classes: Sequence[str],
    templates: Sequence[str],
    *,
    batch: int = 256,
    advance: Advance = ignore_progress,
) -> ClassEmbeddings:
    """Return for each class the normalised mean of its prompts' embeddings. {} in a template stands for the class.

    https://arxiv.org/abs/2103.00020, section 3.1.4
    """
    means, total_cut = [model.log_scale.new_zeros(0, model.text.outputs)], 0
    step = max(1, MAX_PROMPTS // len(templates))
    for start in range(0, len(classes), step):
        rows, cut = tokenizer.encode_and_cut(fill_templates(classes[start : start + step], templates))
        embeddings = encode_rows(model, tokenizer, rows, batch=batch, advance=advance)
        means.append(normalize_embeddings(embeddings.unflatten(0, (-1, len(templates))).mean(1)))
        total_cut += len(cut)
    return ClassEmbeddings(torch.cat(means), total_cut)


def fill_templates(classes: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Return the prompts of all classes: those of the first class, then those of the second, and so on."""
    return [template.replace("{}", name) for name in classes for template in templates]
