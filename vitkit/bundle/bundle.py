"""The type of a model with its config, preprocessing, class names and tokenizer."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer


class Bundle(NamedTuple):
    """A model in eval mode and what belongs to it.

    Args:
        config: the argument of `build_model` for such a model; for a tower of a model, the config of the whole model;
            empty if there is none.
        preprocess: None for a model that reads no images.
        class_names: the class of each output, in order; empty if the outputs are no classes.
        multilabel: whether an image may have several classes.
        tokenizer: None for a model that reads no texts.
        source: where the model was opened from, as the user wrote it.
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
