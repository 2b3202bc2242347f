"""Bundles of image models for the commands: with logits of classes or, without classes, an embedding."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.models.clip import normalize_embeddings
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.parts import get_image_tower


class Embedding(nn.Module):
    """Project the pooled vector of a CLIP's image tower to an embedding of length 1."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B E"]:
        return normalize_embeddings(self.head(pooled))


def select_tower(bundle: Bundle) -> Bundle:
    """Return the image tower without a head: its output is the pooled vector."""
    tower = get_image_tower(bundle.model)
    model = HeadedTower(tower, nn.Identity(), tower.encoder.dim).eval()
    return bundle._replace(model=model, class_names=(), multilabel=False, tokenizer=None)


def select_embedding_tower(bundle: Bundle) -> Bundle:
    """Return the image tower of a model of images and texts: its output is the embedding, of length 1."""
    tower = get_image_tower(bundle.model)
    model = HeadedTower(tower, Embedding(tower.head), tower.outputs).eval()
    return bundle._replace(model=model, class_names=(), multilabel=False, tokenizer=None)


def build_untrained(bundle: Bundle) -> Bundle:
    """Return the same image tower without a head, with initial weights from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = model_config.build_model(bundle.config).eval()
    return select_tower(bundle._replace(model=model))
