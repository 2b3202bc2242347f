"""The page of lessons on attention, whose numbers are computed in the page.

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
from vitkit.models.parts import ImageTower, get_image_tower, get_layers
from vitkit.nn import Encoder, Learned
from vitkit.nn import init as recipes
from vitkit.pages.assemble import assemble_page
from vitkit.pages.learn.position_table import PACKAGE, load_digit_table, pack_table
from vitkit.pages.learn.steps import record_layer
from vitkit.pages.page import Page
from vitkit.support.texts import ENGLISH, read_asset, read_texts

LESSONS = ("vectors", "softmax", "sentence", "positions", "layer", "sampling", "counter")
# Written by hand: pairs of channels (i and i + 4) of different lengths and directions.
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
    """Return a page of interactive lessons.

    One lesson shows a layer of the model step by step, another its learned positions.

    Args:
        model: in evaluation mode; its image tower is shown (default: a small untrained ViT).
        images: one image, preprocessed (default: `draw_waves` in the size of the model's table of positions).
        layer: index of the layer that is shown, negative from the end.
        name, picture: names of the model and of the image (none for the waves) on the page.
        language: of the page: en, or zh for Simplified Chinese.

    Raises: ValueError for a language without texts, a layer that is not there, a model in training mode.
    """
    texts = read_texts(language, PACKAGE)
    tower = build_untrained_vit() if model is None else get_image_tower(model)
    name = name or type(tower).__name__
    image = draw_waves(tower.embed.patches.in_channels, *choose_image_size(tower)) if images is None else images
    steps = record_layer(tower, image.to(next(tower.parameters())), layer)
    depth = len(get_layers(tower).blocks)
    values = {
        "model": texts["layer.untrained" if model is None else "layer.model"].format(name=name),
        "input": texts["layer.picture" if picture else "layer.waves"].format(picture=picture),
        "layer": layer % depth,
        "last": depth - 1,
    }
    data = {
        "texts": {key: text for key, text in texts.items() if isinstance(text, str)},
        "sentence": texts["sentence"],
        "sampling": texts["sampling"],
        "rotary": ROTARY,
        "learned": pack_positions(None if model is None else tower, name, texts),
        "layer": {"steps": [step._asdict() for step in steps], "source": texts["layer.source"].format(**values)},
    }
    style = read_asset("learn.css", PACKAGE)
    return Page(assemble_page(texts["title"], style, fill_body(texts), join_scripts(), data, texts["lang"]))


def fill_body(texts: Mapping[str, Any]) -> str:
    """Return learn.html with a text in place of each {{name}}."""
    return re.sub(r"{{([\w.]+)}}", lambda match: html.escape(texts[match[1]]), read_asset("learn.html", PACKAGE))


def join_scripts() -> str:
    names = ("calculate", "widgets", *(f"lesson_{lesson}" for lesson in LESSONS), "start")
    return "\n".join(read_asset(f"{name}.js", PACKAGE) for name in names)


def build_untrained_vit() -> ViT:
    """Return a small ViT, always with the same random weights; the caller's random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return ViT(Encoder(64, 4, 4), (32, 32), (8, 8), 10, init=recipes.mae).eval()


def choose_image_size(tower: ImageTower) -> tuple[int, int]:
    """Return the image size (H, W) that fits the table of learned positions, or 4 x 4 patches without one."""
    table, (height, width) = tower.embed.table, tower.embed.patch_size
    rows, columns = table.grid if isinstance(table, Learned) else (4, 4)
    return rows * height, columns * width


def draw_waves(channels: int, height: int, width: int) -> Float[Tensor, "1 C H W"]:
    """Return an image of sine waves, normalised to mean 0 and variance 1."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    turns = [(3 - channel, 1 + channel) for channel in range(channels)]
    image = torch.stack([(2 * torch.pi * (across * x + down * y)).sin() for across, down in turns])
    return ((image - image.mean()) / image.std())[None]


def pack_positions(tower: ImageTower | None, name: str, texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's learned positions, or those of the digits model if it has none, and a text on their source."""
    if tower is not None and isinstance(tower.embed.table, Learned):
        table, source = tower.embed.table.weight.detach().float().cpu(), "positions.own"
    else:
        table, source = load_digit_table(), "positions.built_in" if tower is None else "positions.none"
    return pack_table(table)._asdict() | {"source": texts[source].format(name=name)}
