"""What `attend`, `heads` and `explain` look at: an image model of anybody's, with what is needed to run it.

B batch, C channels, H W pixels, K outputs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle.image_bundle import Dual, Readable
from vitkit.convert.open import open_any, open_tower
from vitkit.data.preprocess import Preprocess
from vitkit.inference.zero_shot_classifier import zero_shot
from vitkit.interpret.maps.layout import Layout, layout_of
from vitkit.interpret.see.layers import attention_layers


class Examined(NamedTuple):
    """Args:
    model: what hooks go on; of a CLIP its image tower.
    run: (B, K) logits of `classes`; without classes the vectors of the pictures.
    layers: the names of the layers that make the picture's vector, first to last.
    to: moves all that `run` uses to a device.
    """

    model: nn.Module
    run: Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B K"]]
    preprocess: Preprocess
    classes: tuple[str, ...]
    several: bool
    layers: tuple[str, ...]
    source: str
    to: Callable[[torch.device], object]

    @property
    def layout(self) -> Layout:
        """Raises: ValueError for a model whose tokens are not known."""
        try:
            return layout_of(self.model, self.preprocess.size)
        except ValueError as error:
            reason = str(error).removesuffix("; give a Layout")  # which no command takes
            raise ValueError(f"{reason}, got {self.source}; in Python vitkit.capture gives weights alone") from None


def open_examined(source: str | Path, classes: Sequence[str] = ()) -> Examined:
    """A model folder, timm:NAME, openclip:NAME@PRETRAINED or hf:NAME.

    What vitkit can hold is opened as its own; other models of timm as they are.

    Args: classes: what a CLIP is to tell apart, in words.
    Raises: ValueError, one line.
    """
    if foreign := of_timm(str(source)):
        if classes:
            raise ValueError(f"classes must be given for a CLIP only, got them for {source}")
        return foreign
    if not classes:
        return examined(open_tower(source))
    opened = open_any(source)
    if not isinstance(opened, Dual):
        raise ValueError(f"classes must be given for a CLIP only, got them for {source}")
    return examined(zero_shot(opened, classes))


def examined(opened: Readable) -> Examined:
    """Its decoder and its text tower, where it has one, do not run."""
    model, pool, head = opened.model, opened.pool, opened.head or opened.embed

    def run(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return head(pool(model.features(images)))

    layers = tuple(name for name in attention_layers(model) if not name.startswith("decoder."))
    return Examined(model, run, opened.preprocess, opened.classes, opened.several, layers, opened.source, opened.to)


def of_timm(source: str) -> Examined | None:
    """A model of timm that vitkit cannot hold, None for everything else."""
    if not source.startswith("timm:"):
        return None
    from vitkit.convert.timm.config import read_facts
    from vitkit.convert.timm.library import created, preprocessing, read_class_names

    name = source.removeprefix("timm:")
    if Path(name).is_dir():
        name = f"local-dir:{name}"
    with torch.device("meta"):
        model = created(source, name, pretrained=False)
    try:
        read_facts(model)
    except ValueError:
        model = created(source, name, pretrained=True).eval()
    else:
        return None
    preprocess, _ = preprocessing(model)
    outputs = cast(int, model.num_classes)
    names, _ = read_class_names(cast(dict[str, object], model.pretrained_cfg), outputs)
    classes = tuple(map(str, range(outputs))) if names is None else names
    return Examined(model, model, preprocess, classes, False, tuple(attention_layers(model)), source, model.to)
