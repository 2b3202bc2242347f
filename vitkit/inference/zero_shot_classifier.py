"""A CLIP as a zero-shot classifier.

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
from vitkit.inference.prompts import PHOTO, check_templates, embed_classes, split_words
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.parts import require_pair_model
from vitkit.support.devices import get_device
from vitkit.support.errors import InputWarning, format_few
from vitkit.support.names import number_duplicates


class Nearest(nn.Module):
    """A head that maps pooled features to the logits of image embeddings with class embeddings."""

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
    """Build a classifier for `vitkit.evaluate` and `vitkit.predict` from a CLIP and class names.

    Args:
        templates: each with {} for the name; a class is the mean of its prompts' embeddings.
            Names such as red_square and RedSquare are split into words first, with a warning that shows them.
        several: whether an image may have several classes, which needs SigLIP's logits.
        cache: keep the classes' embeddings in ~/.cache/vitkit, or $XDG_CACHE_HOME/vitkit, for the same model.
    """
    bundle = open_pair_model(model)
    templates = check_templates(templates)
    if isinstance(classes, str) or len(classes) < 2:  # a text is a sequence, of letters
        raise ValueError(f"classes must be at least two, in a list, got {classes!r:.80}")
    bundle.model.to(get_device(device))
    if (words := split_words(classes)) != tuple(classes):
        warnings.warn(f"class names in prompts: {format_few(words, 10)}", InputWarning, stacklevel=2)
    get_tokenizer(bundle).check_words(words)
    embeddings, cut = embed_classes(bundle, words, templates, cache=cache)
    if cut:
        warnings.warn(format_overflow(cut, len(classes) * len(templates), bundle), InputWarning, stacklevel=2)
    return build_classifier(bundle, classes, embeddings, several)


def build_classifier(bundle: Bundle, names: Sequence[str], classes: Float[Tensor, "K E"], multilabel: bool) -> Bundle:
    clip = require_pair_model(bundle.model)
    if multilabel and clip.bias is None:
        raise ValueError(
            "model must have a bias, as SigLIP has, for several classes of an image, got a CLIP with a softmax"
        )
    _, _, scale, bias = clip.make_pair(classes[:0], classes[:0])
    head = Nearest(Embedding(clip.image.head), classes, scale.item(), bias.item())
    model = HeadedTower(clip.image, head, len(names)).eval()
    return bundle._replace(model=model, class_names=number_duplicates(names), multilabel=multilabel, tokenizer=None)


def format_overflow(cut: int, total: int, bundle: Bundle) -> str:
    return f"{cut} of {total} prompts do not fit into {get_tokenizer(bundle).context} ids and are truncated"
