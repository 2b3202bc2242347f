"""What `vitkit attend` found in one photo: as figures, and as numbers. h w patches down and across."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitkit.commands.examined import Examined
from vitkit.commands.looking import Looked, Query, tokens_read
from vitkit.interpret.flags import prompt_flags
from vitkit.interpret.geometry import Frame
from vitkit.interpret.layout import Layout
from vitkit.interpret.pictures import heads_of_layer, overlay
from vitkit.interpret.words import word_strip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 5


class Attended(NamedTuple):
    """Args:
    photo: upright, as the model's channels want it.
    query: whose rows were read; None for that which the model pools.
    predictions: the likeliest classes and their probabilities, best first; none without classes.
    """

    path: Path
    photo: Image.Image
    frame: Frame
    layout: Layout
    examined: Examined
    query: Query | None
    predictions: tuple[tuple[str, float], ...]
    looked: tuple[Looked, ...]

    def figures(self, *, robust: bool = False) -> "Iterator[tuple[str, Figure]]":
        """By what is to follow the photo's name in that of a file. Args: robust: as in `drawing.scale_of`."""
        marked = self.query if isinstance(self.query, tuple) else None
        for place, looked in enumerate(self.looked):
            split = self.layout.split(looked.rows)
            name, caption = self.file_name(looked, place), self.caption(looked)
            whole = split.patches.mean(0)
            shares = ", ".join(
                f"{token} {share:.1%}" for token, share in zip(self.layout.prefix, split.prefix.mean(0), strict=True)
            )
            rest = f"\nbesides the patches: {shares}" if shares and "share" in looked.unit else ""
            more = {"query": marked, "unit": looked.unit, "robust": robust}
            yield name, overlay(self.photo, self.frame, whole, caption=f"{caption}{rest}", **more)
            if len(looked.heads) > 1:
                titles = [
                    f"head {head}, patches {map.sum():.0%}"
                    for head, map in zip(looked.heads, split.patches, strict=True)
                ]
                by_head = heads_of_layer(
                    self.photo,
                    self.frame,
                    split.patches,
                    titles=titles,
                    caption=self.caption(looked, each=True),
                    **more,
                )
                yield f"{name}_heads", by_head
            if looked.words is not None:
                told = self.caption(
                    looked._replace(layer=looked.words.layer), reader="the token that the text is read from"
                )
                strip = word_strip(looked.words.tokens, looked.words.weights, caption=told, unit=looked.unit)
                yield f"{name}_words", strip

    def to_dict(self) -> dict[str, Any]:
        """JSON's: lists, numbers with 6 digits."""
        return {
            "model": self.examined.source,
            "picture": str(self.path),
            "photo": {"width": self.photo.width, "height": self.photo.height},
            "frame": [short(side) for side in self.frame.box],
            "grid": [*self.layout.grid],
            "prefix": [*self.layout.prefix],
            "query": self.reader,
            "predictions": [{"class": name, "probability": short(share)} for name, share in self.predictions],
            "maps": [self.numbers(looked) for looked in self.looked],
            "flags": self.flags,
        }

    def numbers(self, looked: Looked) -> dict[str, Any]:
        mean = looked.rows.mean(0, keepdim=True)
        titled = [("mean" if looked.heads else "all", mean), *zip(looked.heads, looked.rows.split(1), strict=False)]
        heads = [{"head": head, **self.row(row)} for head, row in titled]
        found: dict[str, Any] = {"layer": looked.layer, "unit": looked.unit, "heads": heads}
        if looked.target is not None:
            found["class"] = looked.target
        if looked.words is not None:
            pairs = zip(looked.words.tokens, looked.words.weights.tolist(), strict=True)
            found["layer_of_words"] = looked.words.layer
            found["words"] = [{"token": token, "weight": short(weight)} for token, weight in pairs]
        return found

    def row(self, row: Float[Tensor, "1 T"]) -> dict[str, Any]:
        split = self.layout.split(row[0])
        masses = zip(self.layout.prefix, split.prefix.tolist(), strict=True)
        return {
            "prefix": {name: short(mass) for name, mass in masses},
            "patches": [[short(value) for value in line] for line in split.patches.tolist()],
        }

    @property
    def flags(self) -> list[str]:
        """In words, what is odd about the maps for several texts."""
        maps = {str(one.target): self.layout.split(one.rows[0]).patches for one in self.looked if one.words is not None}
        return [*map(str, prompt_flags(torch.stack([*maps.values()]), [*maps]))] if len(maps) > 1 else []

    @property
    def reader(self) -> str:
        """Whose rows were read."""
        match tokens_read(self.examined, self.query):
            case None:
                return "the pool"
            case [token]:
                return self.layout.name(token)
        return "mean of the patches"

    def caption(self, looked: Looked, *, each: bool = False, reader: str = "") -> str:
        parts = [self.examined.source, looked.layer]
        if looked.heads:
            listed, count = ", ".join(map(str, looked.heads)), len(looked.heads)
            of_all = f"{count} heads" if looked.heads == tuple(range(count)) else f"heads {listed}"
            parts.append(f"head {listed}" if count == 1 else of_all if each else f"mean of {of_all}")
        parts.append(f"query: {reader or self.reader}")
        if looked.target is not None:
            parts.append(f"for: {looked.target}")
        if self.predictions:
            best, *_ = self.predictions
            parts.append(f"predicted: {best[0]} ({best[1]:.1%})")
        return ", ".join(parts)

    def file_name(self, looked: Looked, place: int) -> str:
        if looked.layer in self.examined.layers:
            return f"layer{self.examined.layers.index(looked.layer)}"
        kind = re.sub(r"[^\w.-]", "_", looked.layer.partition(" of layer")[0])
        return kind if len(self.looked) == 1 else f"{kind}{place}"


def short(number: float) -> float:
    """With 6 digits."""
    return float(f"{number:.6g}")
