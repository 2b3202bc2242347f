"""An image model as the commands read it: a ViT, a CLIP's image tower, or an MAE's encoder."""

from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle import model_config
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP, MAE, ViT
from vitkit.models.clip import unit
from vitkit.nn import Mean


class Readable(NamedTuple):
    """A model and what belongs to it; `head` makes of what is pooled a number for each class, None without classes.

    `several` says whether a picture may have several of the classes, `source` where the model is from. `embed` makes
    of what is pooled in the end the vector of a picture: a CLIP's embedding, otherwise the same.
    """

    model: ViT | MAE
    pool: nn.Module
    head: nn.Module | None
    preprocess: Preprocess
    classes: tuple[str, ...]
    several: bool
    source: str = ""
    embed: nn.Module = nn.Identity()

    def to(self, device: torch.device) -> None:
        for module in (self.model, self.pool, self.head, self.embed):
            if module is not None:
                module.to(device)


class Dual(NamedTuple):
    """A CLIP and what belongs to it. `source` is where it is from."""

    model: CLIP
    preprocess: Preprocess
    tokenizer: Tokenizer
    source: str


class Embedding(nn.Module):
    """What a CLIP's image tower makes of what it has pooled: rows of length 1."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B E"]:
        return unit(self.head(pooled))


def untrained(opened: Readable, folder: Path) -> Readable:
    """The same network before any training, without classes, of a CLIP its image tower; always the same numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        built = cast(ViT | MAE | CLIP, model_config.build_model(model_config.read_yaml(folder / "config.yaml"))).eval()
    return headless(built.image if isinstance(built, CLIP) else built, opened.preprocess)


def headless(model: ViT | MAE, preprocess: Preprocess) -> Readable:
    pool = model.pool if isinstance(model, ViT) else Mean(model.encoder.dim, len(model.embed.prefix))
    return Readable(model, pool, None, preprocess, (), False)
