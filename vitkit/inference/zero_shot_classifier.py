"""A CLIP as a classifier of classes that are given in words.

B batch, K classes, D width, E embedding.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle, get_tokenizer
from vitkit.bundle.image_bundle import Embedding
from vitkit.convert.open import open_pair_model
from vitkit.inference.prompts import PHOTO, check_templates, distinct, embedded
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.parts import require_pair_model
from vitkit.support.devices import get_device


class Nearest(nn.Module):
    """What is pooled of pictures -> the logits of their embeddings with those of classes."""

    def __init__(self, embed: nn.Module, classes: Float[Tensor, "K E"], scale: float, bias: float) -> None:
        super().__init__()
        self.embed, self.scale, self.bias = embed, scale, bias
        self.register_buffer("classes", classes)

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        return self.scale * self.embed(pooled) @ self.get_buffer("classes").T + self.bias


def zero_shot(
    model: str | Path | Bundle,
    classes: Sequence[str],
    templates: Sequence[str] = PHOTO,
    *,
    several: bool = False,
    cache: bool = True,
    device: str = "auto",
) -> Bundle:
    """A classifier for `vitkit.evaluate` and `vitkit.predict`, made of a CLIP and the names of classes.

    Args:
        templates: each with {} for the name; a class is the mean of what the text tower makes of them.
        several: whether a picture may have several of the classes, as SigLIP's logits can say.
        cache: keep the classes' embeddings in ~/.cache/vitkit, or $XDG_CACHE_HOME/vitkit, for the same model.
    """
    bundle = open_pair_model(model)
    templates = check_templates(templates)
    if isinstance(classes, str) or len(classes) < 2:  # the letters of a text would be classes too
        raise ValueError(f"classes must be at least two, in a list, got {classes!r:.80}")
    bundle.model.to(get_device(device))
    found = embedded(bundle, classes, templates, cache=cache)
    if found.cut:
        warnings.warn(overflow(found.cut, len(classes) * len(templates), bundle), stacklevel=2)
    return build_classifier(bundle, classes, found.embeddings, several)


def build_classifier(bundle: Bundle, names: Sequence[str], classes: Float[Tensor, "K E"], several: bool) -> Bundle:
    clip = require_pair_model(bundle.model)
    if several and clip.bias is None:
        raise ValueError(
            "model must have a bias, as SigLIP, to give a picture several classes, got a CLIP that tells which of all"
        )
    _, _, scale, bias = clip.make_pair(classes[:0], classes[:0])
    head = Nearest(Embedding(clip.image.head), classes, scale.item(), bias.item())
    model = HeadedTower(clip.image, head, len(names)).eval()
    return bundle._replace(model=model, class_names=distinct(names), multilabel=several, tokenizer=None)


def overflow(cut: int, of: int, bundle: Bundle) -> str:
    return f"{cut} of {of} prompts do not fit into {get_tokenizer(bundle).context} ids; their ends are cut off"
