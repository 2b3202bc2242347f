"""The one type for a model and what belongs to it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer


class Bundle(NamedTuple):
    """A model in eval mode and what belongs to it.

    Args:
        config: what `build_model` makes such a model from; for a tower that was taken out of a model, the config of
            that model; empty where there is none.
        preprocess: None for a model that reads no images.
        class_names: of the model's outputs, in their order; empty where the outputs are no classes.
        multilabel: whether an image may have several of the classes.
        tokenizer: None for a model that reads no texts.
        source: where the model was opened from, as the user named it.
    """

    model: nn.Module
    config: Mapping[str, Any]
    preprocess: Preprocess | None
    class_names: tuple[str, ...] = ()
    multilabel: bool = False
    tokenizer: Tokenizer | None = None
    source: str = ""


def get_preprocess(bundle: Bundle) -> Preprocess:
    """Return the preprocessing of images. Raises: ValueError for a model that reads none."""
    if bundle.preprocess is None:
        raise ValueError(f"model must read images, got {type(bundle.model).__name__} in {bundle.source}")
    return bundle.preprocess


def get_tokenizer(bundle: Bundle) -> Tokenizer:
    """Return the tokenizer of texts. Raises: ValueError for a model that reads none."""
    if bundle.tokenizer is None:
        raise ValueError(f"model must read texts, got {type(bundle.model).__name__} in {bundle.source}")
    return bundle.tokenizer
