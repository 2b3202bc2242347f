"""A CLIP as a classifier of classes that are given in words.

B batch, K classes, D width, E embedding.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle.image_bundle import Dual, Embedding, Readable
from vitkit.convert.open import open_dual
from vitkit.data.batches import Reading, batches
from vitkit.data.sources.source import Source
from vitkit.inference.prediction import Prediction, Unreadable, check_prediction_options, predict_batch
from vitkit.inference.prompts import PHOTO, check_templates, distinct, embedded
from vitkit.support.devices import present


class Nearest(nn.Module):
    """What is pooled of pictures -> the logits of their embeddings with those of classes."""

    def __init__(self, embed: nn.Module, classes: Float[Tensor, "K E"], scale: float, bias: float) -> None:
        super().__init__()
        self.embed, self.scale, self.bias = embed, scale, bias
        self.register_buffer("classes", classes)

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        return self.scale * self.embed(pooled) @ self.get_buffer("classes").T + self.bias


def zero_shot(
    model: str | Path | Dual,
    classes: Sequence[str],
    templates: Sequence[str] = PHOTO,
    *,
    several: bool = False,
    cache: bool = True,
    device: str = "auto",
) -> Readable:
    """A classifier for `vitkit.evaluate` and `vitkit.predict`, made of a CLIP and the names of classes.

    Args:
        templates: each with {} for the name; a class is the mean of what the text tower makes of them.
        several: whether a picture may have several of the classes, as SigLIP's logits can say.
        cache: keep the classes' embeddings in ~/.cache/vitkit, or $XDG_CACHE_HOME/vitkit, for the same model.
    """
    opened = model if isinstance(model, Dual) else open_dual(model)
    templates = check_templates(templates)
    if isinstance(classes, str) or len(classes) < 2:  # the letters of a text would be classes too
        raise ValueError(f"classes must be at least two, in a list, got {classes!r:.80}")
    opened.model.to(present(device))
    found = embedded(opened, classes, templates, cache=cache)
    if found.cut:
        warnings.warn(overflow(found.cut, len(classes) * len(templates), opened), stacklevel=2)
    return build_classifier(opened, classes, found.embeddings, several)


def build_classifier(opened: Dual, names: Sequence[str], classes: Float[Tensor, "K E"], several: bool) -> Readable:
    clip = opened.model
    if several and clip.bias is None:
        raise ValueError(
            "model must have a bias, as SigLIP, to give a picture several classes, got a CLIP that tells which of all"
        )
    _, _, scale, bias = clip.pair(classes[:0], classes[:0])
    embed = Embedding(clip.image.head)
    head = Nearest(embed, classes, scale.item(), bias.item()).eval()
    return Readable(
        clip.image, clip.image.pool, head, opened.preprocess, distinct(names), several, opened.source, embed
    )


def overflow(cut: int, of: int, opened: Dual) -> str:
    return f"{cut} of {of} prompts do not fit into {opened.tokenizer.context} ids; their ends are cut off"


def predict_source(
    opened: Readable, source: Source, top: int | None, reading: Reading
) -> Iterator[Prediction | Unreadable]:
    """One for every picture of the source, in order."""
    check_prediction_options(top, reading)
    opened.to(present(reading.device))
    start = 0
    for batch in batches(source, range(len(source)), opened.preprocess, reading, "zero-shot"):
        end = start + len(batch.indices) + len(batch.skipped)
        names = [source.name(index) for index in range(start, end)]
        yield from predict_batch(opened, names, batch._replace(indices=batch.indices - start), top)
        start = end
