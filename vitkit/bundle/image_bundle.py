"""Bundles of image models for the commands: with logits of classes or, without classes, an embedding."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.models.clip import normalize_embeddings
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.parts import get_image_tower
from vitkit.nn import Learned


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


def resize_images(bundle: Bundle, size: tuple[int, int]) -> tuple[Bundle, str]:
    """Return the same model for images of another size, (h, w) in pixels, and a note on what changes.

    The model itself stays: for each image it resamples a learned table, or computes the positions of its grid.

    Raises: ValueError for a size that patches do not tile, and for a table of positions that has one size only.
    """
    preprocess, tower = get_preprocess(bundle), get_image_tower(bundle.model)
    resized = replace(preprocess, size=size)
    weight = tower.embed.patches.weight
    with torch.inference_mode():
        tower.embed(weight.new_zeros(1, weight.shape[1], *size))
    grid, table = " x ".join(map(str, tower.grid(size))), tower.embed.table
    if isinstance(table, Learned):
        positions = f"positions of {' x '.join(map(str, table.grid))} patches are resampled to {grid}"
    else:
        positions = f"the grid of patches is {grid}"
    note = f"images are {' x '.join(map(str, size))} pixels, not {' x '.join(map(str, preprocess.size))}; {positions}"
    return bundle._replace(preprocess=resized), note


def build_untrained(bundle: Bundle) -> Bundle:
    """Return the same image tower without a head, with initial weights from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = model_config.build_model(bundle.config).eval()
    return select_tower(bundle._replace(model=model))
