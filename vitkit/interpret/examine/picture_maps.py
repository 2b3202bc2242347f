"""Attention maps of picture files, as figures and as numbers. h w patches down and across."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitkit.bundle.bundle import Bundle
from vitkit.convert.open import open_pair_model
from vitkit.data.batches import warn_of_tiny_images
from vitkit.data.preprocess import PictureError, read_image
from vitkit.inference.prediction import raise_unreadable
from vitkit.interpret.draw.map_figures import draw_heads, draw_overlay, render_map, save_figure
from vitkit.interpret.draw.panels import make_scale
from vitkit.interpret.draw.word_strip import draw_tokens
from vitkit.interpret.examine.attention_maps import (
    AttentionMap,
    MapMethod,
    MapOptions,
    Query,
    find_query_tokens,
    make_text_model,
    map_attention,
)
from vitkit.interpret.examine.image_model import AttentionModel, open_attention_model
from vitkit.interpret.maps.geometry import Frame
from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.measure.flags import flag_prompts
from vitkit.support.errors import escape_controls
from vitkit.support.files import choose_png_name, fill_folder, replace_file, write_text
from vitkit.support.output import open_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TOP = 5


class ImageAttention(NamedTuple):
    """The attention maps of one image.

    Args:
        photo: upright, in the model's channels.
        query: as in `MapOptions`.
        predictions: the most likely classes with their probabilities, best first; empty without classes.
    """

    path: Path
    photo: Image.Image
    frame: Frame
    layout: Layout
    model: AttentionModel
    query: Query | None
    predictions: tuple[tuple[str, float], ...]
    maps: tuple[AttentionMap, ...]

    @property
    def input(self) -> Image.Image:
        """The image as the model sees it, before its pixels are normalised."""
        return self.model.preprocess.resize(self.photo)

    def render_maps(self, *, robust: bool = False) -> Iterator[tuple[str, Image.Image]]:
        """Yield the input, and each map alone in its size: the mean of the heads, and each head on one colour scale.

        Each comes with a suffix for its file's name. Args: robust: as in `panels.make_scale`.
        """
        image = self.input
        yield "input", image
        for index, map in enumerate(self.maps):
            name, patches = f"{self.name_file(map, index)}_map", self.layout.split(map.rows).patches
            mean = patches.mean(0)
            yield name, render_map(mean, make_scale(mean, robust=robust), image.size)
            if len(map.heads) > 1:
                scale = make_scale(patches, robust=robust)
                for head, row in zip(map.heads, patches, strict=True):
                    yield f"{name}_head{head}", render_map(row, scale, image.size)

    def draw_figures(self, *, robust: bool = False) -> "Iterator[tuple[str, Figure]]":
        """Yield figures, each with a suffix for its file's name. Args: robust: as in `panels.make_scale`."""
        query = self.query if isinstance(self.query, tuple) else None
        for index, map in enumerate(self.maps):
            split = self.layout.split(map.rows)
            name, caption = self.name_file(map, index), self.format_caption(map)
            shares = ", ".join(
                f"{token} {share:.1%}" for token, share in zip(self.layout.prefix, split.prefix.mean(0), strict=True)
            )
            rest = f"\nprefix tokens: {shares}" if shares and "share" in map.unit else ""
            options = {"query": query, "unit": map.unit, "robust": robust}
            yield (
                name,
                draw_overlay(self.photo, self.frame, split.patches.mean(0), caption=f"{caption}{rest}", **options),
            )
            if len(map.heads) > 1:
                titles = [
                    f"head {head}, patches {patches.sum():.0%}"
                    for head, patches in zip(map.heads, split.patches, strict=True)
                ]
                caption = self.format_caption(map, by_head=True)
                image = self.input
                frame = Frame(image.size, (0, 0, *image.size), self.layout.grid)
                figure = draw_heads(image, frame, split.patches, titles=titles, caption=caption, **options)
                yield f"{name}_heads", figure
            if map.text is not None:
                caption = self.format_caption(map._replace(layer=map.text.layer), query="the text's pooled token")
                yield f"{name}_words", draw_tokens(map.text.tokens, map.text.weights, caption=caption, unit=map.unit)

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON: lists, numbers with 6 digits."""
        return {
            "model": self.model.bundle.source,
            "picture": str(self.path),
            "photo": {"width": self.photo.width, "height": self.photo.height},
            "frame": [round_digits(coordinate) for coordinate in self.frame.box],
            "grid": [*self.layout.grid],
            "prefix": [*self.layout.prefix],
            "query": self.query_name,
            "predictions": [
                {"class": name, "probability": round_digits(probability)} for name, probability in self.predictions
            ],
            "maps": [self._map_to_dict(map) for map in self.maps],
            "flags": self.flags,
        }

    def _map_to_dict(self, map: AttentionMap) -> dict[str, Any]:
        mean = map.rows.mean(0, keepdim=True)
        rows = [("mean" if map.heads else "all", mean), *zip(map.heads, map.rows.split(1), strict=False)]
        heads = [{"head": head, **self._row_to_dict(row)} for head, row in rows]
        entry: dict[str, Any] = {"layer": map.layer, "unit": map.unit, "heads": heads}
        if map.target is not None:
            entry["class"] = map.target
        if map.text is not None:
            pairs = zip(map.text.tokens, map.text.weights.tolist(), strict=True)
            entry["layer_of_words"] = map.text.layer
            entry["words"] = [{"token": token, "weight": round_digits(weight)} for token, weight in pairs]
        return entry

    def _row_to_dict(self, row: Float[Tensor, "1 T"]) -> dict[str, Any]:
        split = self.layout.split(row[0])
        prefix = zip(self.layout.prefix, split.prefix.tolist(), strict=True)
        return {
            "prefix": {name: round_digits(value) for name, value in prefix},
            "patches": [[round_digits(value) for value in line] for line in split.patches.tolist()],
        }

    @property
    def flags(self) -> list[str]:
        """Warnings about the maps for several texts."""
        maps = {str(map.target): self.layout.split(map.rows[0]).patches for map in self.maps if map.text is not None}
        return [str(flag) for flag in flag_prompts(torch.stack([*maps.values()]), [*maps])] if len(maps) > 1 else []

    @property
    def query_name(self) -> str:
        """Name of the token whose row the maps show."""
        match find_query_tokens(self.model, self.query):
            case None:
                return "the pool"
            case [token]:
                return self.layout.name_token(token)
        return "mean of the patches"

    def format_caption(self, map: AttentionMap, *, by_head: bool = False, query: str = "") -> str:
        parts = [self.model.bundle.source, map.layer]
        if map.heads:
            numbers, count = ", ".join(str(head) for head in map.heads), len(map.heads)
            heads = f"{count} heads" if map.heads == tuple(range(count)) else f"heads {numbers}"
            parts.append(f"head {numbers}" if count == 1 else heads if by_head else f"mean of {heads}")
        parts.append(f"query: {query or self.query_name}")
        if map.target is not None:
            parts.append(f"target: {map.target}")
        if self.predictions:
            name, probability = self.predictions[0]
            parts.append(f"predicted: {name} ({probability:.1%})")
        return ", ".join(parts)

    def name_file(self, map: AttentionMap, index: int) -> str:
        if map.layer in self.model.layers:
            return f"layer{self.model.layers.index(map.layer)}"
        kind = re.sub(r"[^\w.-]", "_", map.layer.partition(" of layer")[0])
        return kind if len(self.maps) == 1 else f"{kind}{index}"


def round_digits(number: float) -> float:
    """Round to 6 significant digits."""
    return float(f"{number:.6g}")


def attend(
    model: str | Path | Bundle | AttentionModel,
    paths: str | Path | Iterable[str | Path],
    *,
    options: MapOptions | None = None,
    method: MapMethod = map_attention,
    texts: Sequence[str] = (),
    unreadable: Callable[[PictureError], None] = raise_unreadable,
) -> Iterator[ImageAttention]:
    """Compute the attention maps of picture files, one after the other.

    Args:
        model: a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, or one that is open already.
        paths: one or several.
        options: layers, heads and query (default: the last layer, all heads, what the model pools).
        method: `map_attention`, `map_rollout` or `map_relevance` of `attention_maps`.
        texts: for a CLIP, to compare its images with.
        unreadable: gets the error of each picture that cannot be read.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    attention_model = model if isinstance(model, AttentionModel) else load_attention_model(model, texts)
    count, tiny = 0, list[str]()
    for path in map(Path, paths):
        count += 1
        try:
            photo = attention_model.preprocess.convert(read_image(path))
        except PictureError as error:
            unreadable(error)
            continue
        tiny += [str(path)] if attention_model.preprocess.is_tiny(photo) else []
        yield compute_maps(attention_model, path, photo, method, options or MapOptions())
    warn_of_tiny_images(tiny, count, attention_model.preprocess)


def load_attention_model(source: str | Path | Bundle, texts: Sequence[str] = ()) -> AttentionModel:
    """Open a model, or a CLIP for texts. Raises: ValueError, one line, also for texts without a text tower."""
    return make_text_model(open_pair_model(source), texts) if texts else open_attention_model(source)


def compute_maps(
    model: AttentionModel, path: Path, photo: Image.Image, method: MapMethod, options: MapOptions
) -> ImageAttention:
    layout = model.layout
    frame = Frame.from_preprocess(model.preprocess, photo.size, layout)
    image = model.preprocess(photo)[None].to(next(model.model.parameters()))
    outputs, maps = method(model, image, options)
    if not outputs.isfinite().all():
        raise ValueError(f"model must return finite numbers, got others for {path}")
    predictions = rank_classes(outputs, model.bundle.class_names, model.bundle.multilabel)
    return ImageAttention(path, photo, frame, layout, model, options.query, predictions, maps)


def rank_classes(outputs: Tensor, class_names: Sequence[str], multilabel: bool) -> tuple[tuple[str, float], ...]:
    """Return the most likely classes and their probabilities, best first."""
    if not class_names or (len(class_names) == 1 and not multilabel):  # a single class always has 100 %
        return ()
    probabilities = outputs.float().sigmoid() if multilabel else outputs.float().softmax(0)
    best = probabilities.topk(min(TOP, len(class_names)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple((class_names[int(index)], float(probability)) for index, probability in pairs)


def write_maps(
    images: Iterable[ImageAttention], folder: Path, suffix: str | None, robust: bool, alone: bool = False
) -> int:
    """Write the files of each image and print their names; without a suffix no figures. Returns the number of images.

    Args: alone: write the results of `render_maps` as well.
    """
    stems: set[str] = set()
    count = 0
    with fill_folder(folder), open_output(None) as screen:
        for image in images:
            count += 1
            stem = choose_png_name(image.path.stem, stems).removesuffix(".png")
            names = [f"{stem}.json"]
            for name, figure in image.draw_figures(robust=robust) if suffix else ():
                save_figure(figure, folder / f"{stem}_{name}.{suffix}")
                names.append(f"{stem}_{name}.{suffix}")
            for name, picture in image.render_maps(robust=robust) if alone else ():
                names.append(f"{stem}_{name}.png")
                with replace_file(folder / names[-1]) as temporary:
                    picture.save(temporary, format="PNG")
            write_text(folder / names[0], json.dumps(image.to_dict(), ensure_ascii=False) + "\n")
            best = "".join(f"  {name} {probability:5.1%}" for name, probability in image.predictions[:3])
            print(f"{image.path}{best}  ->  {', '.join(names)}", file=screen, flush=True)
            for flag in image.flags:
                print(escape_controls(f"note: {image.path}: {flag}"), file=sys.stderr)
    return count
