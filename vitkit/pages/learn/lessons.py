"""The page of lessons: what attention computes, computed in the page.

C channels, H W pixels.
"""

import html
import re
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.models import ViT
from vitkit.models.parts import ImageTower, image_tower, layers
from vitkit.nn import Encoder, Learned
from vitkit.nn import init as recipes
from vitkit.pages.assemble import assembled
from vitkit.pages.learn.position_table import PACKAGE, built_in, pack_table
from vitkit.pages.learn.steps import layer_steps
from vitkit.pages.page import Page
from vitkit.support.texts import ENGLISH, read_asset, read_texts

LESSONS = ("vectors", "softmax", "sentence", "positions", "layer", "sampling", "counter")
# Written by hand: pairs of channels (i and i + 4) of several lengths and directions.
ROTARY = {"query": [1.0, 0.6, -0.4, 0.8, 0.2, 1.0, 0.9, -0.3], "key": [0.8, -0.2, 0.5, 1.0, 0.6, 0.9, -0.7, 0.4]}


def learn(
    model: nn.Module | None = None,
    images: Float[Tensor, "1 C H W"] | None = None,
    *,
    layer: int = 0,
    name: str = "",
    picture: str = "",
    language: str = ENGLISH,
) -> Page:
    """Lessons to play with; one shows a layer of this model step by step, one its learned positions.

    Args:
        model: in evaluation mode, with an image tower, which is shown. Without one a small ViT that is not trained.
        images: a picture as the model reads it (default: `waves` as large as its table).
        layer: which is shown, from either end.
        name, picture: what the page calls the model, and the picture, if it is no waves.

    Raises: ValueError for a language without texts, a layer that is not there, a model in training mode.
    """
    texts = read_texts(language, PACKAGE)
    tower = untrained() if model is None else image_tower(model)
    name = name or type(tower).__name__
    pictured = waves(tower.embed.patches.in_channels, *side(tower)) if images is None else images
    steps = layer_steps(tower, pictured.to(next(tower.parameters())), layer)
    depth = len(layers(tower).blocks)
    told = {
        "who": texts["layer.untrained" if model is None else "layer.model"].format(name=name),
        "what": texts["layer.picture" if picture else "layer.waves"].format(picture=picture),
        "layer": layer % depth,
        "last": depth - 1,
    }
    data = {
        "texts": {key: text for key, text in texts.items() if isinstance(text, str)},
        "sentence": texts["sentence"],
        "sampling": texts["sampling"],
        "rotary": ROTARY,
        "learned": positions(None if model is None else tower, name, texts),
        "layer": {"steps": [step._asdict() for step in steps], "source": texts["layer.source"].format(**told)},
    }
    style = read_asset("learn.css", PACKAGE)
    return Page(assembled(texts["title"], style, body(texts), script(), data, language))


def body(texts: Mapping[str, Any]) -> str:
    """The page without what is computed in it. In learn.html {{name}} stands for a text."""
    return re.sub(r"{{([\w.]+)}}", lambda found: html.escape(texts[found[1]]), read_asset("learn.html", PACKAGE))


def script() -> str:
    names = ("calculate", "widgets", *(f"lesson_{lesson}" for lesson in LESSONS), "start")
    return "\n".join(read_asset(f"{name}.js", PACKAGE) for name in names)


def untrained() -> ViT:
    """Always with the same numbers; the caller's random numbers are not touched."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return ViT(Encoder(64, 4, 4), (32, 32), (8, 8), 10, init=recipes.mae).eval()


def side(tower: ImageTower) -> tuple[int, int]:
    """(H, W) of as many patches as the model's table has; of 4 x 4 where it has any number."""
    table, (height, width) = tower.embed.table, tower.embed.patch_size
    rows, columns = table.grid if isinstance(table, Learned) else (4, 4)
    return rows * height, columns * width


def waves(channels: int, height: int, width: int) -> Float[Tensor, "1 C H W"]:
    """A picture of mean 0 and variance 1, as one that was normalised."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    turns = [(3 - channel, 1 + channel) for channel in range(channels)]
    picture = torch.stack([(2 * torch.pi * (across * x + down * y)).sin() for across, down in turns])
    return ((picture - picture.mean()) / picture.std())[None]


def positions(tower: ImageTower | None, name: str, texts: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own table, if it has learned one, or else the built-in one; and the words for it."""
    if tower is not None and isinstance(tower.embed.table, Learned):
        table, source = tower.embed.table.weight.detach().float().cpu(), "positions.own"
    else:
        table, source = built_in(), "positions.built_in" if tower is None else "positions.none"
    return pack_table(table)._asdict() | {"source": texts[source].format(name=name)}
