"""What `vitkit attend` found in one photo: as figures, and as numbers. h w patches down and across."""

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
from vitkit.data.preprocess import PictureError, read
from vitkit.inference.prediction import raise_unreadable
from vitkit.interpret.draw.map_figures import heads_of_layer, overlay, save_figure
from vitkit.interpret.draw.word_strip import word_strip
from vitkit.interpret.examine.attention_maps import Asked, Look, Looked, Query, raw, tokens_read, with_texts
from vitkit.interpret.examine.image_model import AttentionModel, open_attention_model
from vitkit.interpret.maps.geometry import Frame
from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.measure.flags import flag_prompts
from vitkit.support.files import choose_png_name, replace_file
from vitkit.support.output import open_output

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
    examined: AttentionModel
    query: Query | None
    predictions: tuple[tuple[str, float], ...]
    looked: tuple[Looked, ...]

    def figures(self, *, robust: bool = False) -> "Iterator[tuple[str, Figure]]":
        """By what is to follow the photo's name in that of a file. Args: robust: as in `panels.scale_of`."""
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
            "model": self.examined.bundle.source,
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
        return [*map(str, flag_prompts(torch.stack([*maps.values()]), [*maps]))] if len(maps) > 1 else []

    @property
    def reader(self) -> str:
        """Whose rows were read."""
        match tokens_read(self.examined, self.query):
            case None:
                return "the pool"
            case [token]:
                return self.layout.name_token(token)
        return "mean of the patches"

    def caption(self, looked: Looked, *, each: bool = False, reader: str = "") -> str:
        parts = [self.examined.bundle.source, looked.layer]
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


def attend(
    model: str | Path | Bundle | AttentionModel,
    paths: str | Path | Iterable[str | Path],
    *,
    asked: Asked | None = None,
    look: Look = raw,
    texts: Sequence[str] = (),
    unreadable: Callable[[PictureError], None] = raise_unreadable,
) -> Iterator[Attended]:
    """Look where a model looks in picture files, one after the other.

    Args:
        model: a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, or one that is open already.
        paths: also just one.
        asked: which layers, heads, query (default: the last layer, all heads, that which the model pools).
        look: `raw`, `rolled` or `relevant` of `attention_maps`: attention as it is, rolled out, or for a class.
        texts: of a CLIP: what its pictures are compared with.
        unreadable: gets the error of each picture that fails.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    examined = model if isinstance(model, AttentionModel) else load_attention_model(model, texts)
    for path in map(Path, paths):
        try:
            photo = examined.preprocess.convert(read(path))
        except PictureError as error:
            unreadable(error)
            continue
        yield attended(examined, path, photo, look, asked or Asked())


def load_attention_model(source: str | Path | Bundle, texts: Sequence[str] = ()) -> AttentionModel:
    """Raises: ValueError, one line, also for texts and a model that reads none."""
    return with_texts(open_pair_model(source), texts) if texts else open_attention_model(source)


def attended(examined: AttentionModel, path: Path, photo: Image.Image, look: Look, asked: Asked) -> Attended:
    layout = examined.layout
    frame = Frame.from_preprocess(examined.preprocess, photo.size, layout)
    image = examined.preprocess(photo)[None].to(next(examined.model.parameters()))
    outputs, looked = look(examined, image, asked)
    if not outputs.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others for {path}")
    best = likeliest(outputs, examined.bundle.class_names, examined.bundle.multilabel)
    return Attended(path, photo, frame, layout, examined, asked.query, best, looked)


def likeliest(outputs: Tensor, classes: Sequence[str], several: bool) -> tuple[tuple[str, float], ...]:
    if not classes or (len(classes) == 1 and not several):  # of one alone it is always 100 %
        return ()
    shares = outputs.float().sigmoid() if several else outputs.float().softmax(0)
    best = shares.topk(min(TOP, len(classes)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple((classes[int(place)], float(share)) for place, share in pairs)


def write(found: Iterable[Attended], folder: Path, suffix: str | None, robust: bool) -> int:
    """Files for each photo, told as they are there; without a suffix the numbers alone. Gives back how many photos."""
    taken: set[str] = set()
    count = 0
    with open_output(None) as screen:
        for one in found:
            count += 1
            folder.mkdir(exist_ok=True)  # not for nothing
            stem = choose_png_name(one.path.stem, taken).removesuffix(".png")
            names = [f"{stem}.json"]
            for name, figure in one.figures(robust=robust) if suffix else ():
                save_figure(figure, folder / f"{stem}_{name}.{suffix}")
                names.append(f"{stem}_{name}.{suffix}")
            with replace_file(folder / names[0]) as beside:
                text = json.dumps(one.to_dict(), ensure_ascii=False)
                beside.write_text(text + "\n", "utf-8", errors="backslashreplace")  # as JSON spells what is no text
            best = "".join(f"  {name} {share:5.1%}" for name, share in one.predictions[:3])
            print(f"{one.path}{best}  ->  {', '.join(names)}", file=screen, flush=True)
            for flag in one.flags:
                print(f"note: {one.path}: {flag}", file=sys.stderr)
    return count
