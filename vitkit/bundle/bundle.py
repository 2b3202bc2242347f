"""The model that a folder holds, with its preprocessing, class names and tokenizer."""

from typing import NamedTuple

from torch import nn

from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer


class Opened(NamedTuple):
    """A model in eval mode and what belongs to it."""

    model: nn.Module
    preprocess: Preprocess
    classes: tuple[str, ...]
    tokenizer: Tokenizer | None
