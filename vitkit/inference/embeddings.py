"""Many texts through a text tower without computing anything twice. N texts, K classes, E embedding."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP
from vitkit.models.clip import normalize_embeddings

Tell = Callable[[int], object]
PROMPTS = 2**17  # at a time, whose embeddings of 512 numbers are 256 MB


class Classes(NamedTuple):
    """Args: embeddings: rows of length 1. cut: how many of the prompts did not fit and lost their ends."""

    embeddings: Float[Tensor, "K E"]
    cut: int


def quietly(done: int) -> None:
    """Tell nobody."""


def encode_texts(
    model: CLIP, tokenizer: Tokenizer, texts: Sequence[str], *, batch: int = 256, tell: Tell = quietly
) -> Float[Tensor, "N E"]:
    """Rows of length 1, on the model's device: equal texts are encoded once, texts of about one length together.

    Args: tell: is called after each batch with the number of texts that are done with it, equal ones included.
    Raises: ValueError, or a warning, for texts that do not fit, as the tokenizer's policy says.
    """
    rows, cut = tokenizer.rows(texts)
    tokenizer.judge(texts, cut)
    return encode_rows(model, tokenizer, rows, batch=batch, tell=tell)


@torch.no_grad()
def encode_rows(
    model: CLIP, tokenizer: Tokenizer, rows: Sequence[Sequence[int]], *, batch: int = 256, tell: Tell = quietly
) -> Float[Tensor, "N E"]:
    """What `encode_texts` gives, of the ids that `tokenizer.rows` gives."""
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got batch={batch}")
    counts = Counter(map(tuple, rows))
    order = sorted(counts, key=lambda row: (len(row), row))
    encoded = [model.log_scale.new_zeros(0, model.text.outputs)]
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        encoded.append(model.encode_text(tokenizer.padded(some).to(model.log_scale.device)))
        tell(sum(counts[row] for row in some))
    places = {row: place for place, row in enumerate(order)}
    own = torch.tensor([places[tuple(row)] for row in rows], dtype=torch.int64, device=model.log_scale.device)
    return torch.cat(encoded)[own]


def encode_classes(
    model: CLIP,
    tokenizer: Tokenizer,
    classes: Sequence[str],
    templates: Sequence[str],
    *,
    batch: int = 256,
    tell: Tell = quietly,
) -> Classes:
    """For each class the mean of its prompts' embeddings, made as long as 1: {} in a template stands for the class.

    https://arxiv.org/abs/2103.00020, section 3.1.4
    """
    some, found, lost = max(1, PROMPTS // len(templates)), [model.log_scale.new_zeros(0, model.text.outputs)], 0
    for start in range(0, len(classes), some):
        rows, cut = tokenizer.rows(prompts(classes[start : start + some], templates))
        encoded = encode_rows(model, tokenizer, rows, batch=batch, tell=tell)
        found.append(normalize_embeddings(encoded.unflatten(0, (-1, len(templates))).mean(1)))
        lost += len(cut)
    return Classes(torch.cat(found), lost)


def prompts(classes: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Each class in each template: all of the first class, then all of the second."""
    return [template.replace("{}", name) for name in classes for template in templates]
