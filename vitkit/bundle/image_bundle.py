"""Image models as the commands read them: a head gives a number for each class or, without classes, a vector."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.models.clip import unit
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.parts import image_tower


class Embedding(nn.Module):
    """Project what a CLIP's image tower has pooled to an embedding of length 1."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B E"]:
        return unit(self.head(pooled))


def select_tower(bundle: Bundle) -> Bundle:
    """Return the image tower without classes: an image's vector is what the tower pools."""
    tower = image_tower(bundle.model)
    model = HeadedTower(tower, nn.Identity(), tower.encoder.dim).eval()
    return bundle._replace(model=model, class_names=(), multilabel=False, tokenizer=None)


def select_embedding_tower(bundle: Bundle) -> Bundle:
    """Return the image tower of a model that compares images with texts: an image's vector is its embedding."""
    tower = image_tower(bundle.model)
    model = HeadedTower(tower, Embedding(tower.head), tower.outputs).eval()
    return bundle._replace(model=model, class_names=(), multilabel=False, tokenizer=None)


def untrained(bundle: Bundle) -> Bundle:
    """Return the same image tower before any training, without classes; always the same numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = model_config.build_model(bundle.config).eval()
    return select_tower(bundle._replace(model=model))
