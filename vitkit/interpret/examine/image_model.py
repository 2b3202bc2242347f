"""Image models of any library, with what `attend`, `heads` and `explain` need to run them.

B batch, C channels, H W pixels, K outputs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.convert.open import open_image_tower, open_model
from vitkit.data.preprocess import Preprocess
from vitkit.inference.zero_shot_classifier import zero_shot
from vitkit.interpret.maps.layout import Layout, layout_of
from vitkit.interpret.see.layers import find_attention_layers
from vitkit.models.parts import find_image_tower, find_masked_autoencoder, get_inputs, require_image_model


class AttentionModel(NamedTuple):
    """An image model with its attention layers.

    Args:
        bundle: contains all that `run` uses, so that moving its model to a device moves it. The class names of a model
            that compares images with texts are the texts.
        run: returns logits (B, K) of the class names; without class names, embeddings.
        layers: names of the layers that lead to the image's embedding, first to last.
    """

    bundle: Bundle
    run: Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B K"]]
    layers: tuple[str, ...]

    @property
    def model(self) -> nn.Module:
        """The module to hook: the image tower, or the whole model of another library."""
        tower = find_image_tower(self.bundle.model)
        return self.bundle.model if tower is None else tower

    @property
    def preprocess(self) -> Preprocess:
        return get_preprocess(self.bundle)

    @property
    def layout(self) -> Layout:
        """The model's tokens. Raises: ValueError for a model with unknown tokens."""
        try:
            return layout_of(self.model, self.preprocess.size)
        except ValueError as error:
            reason = str(error).removesuffix("; give a Layout")  # no command takes one
            raise ValueError(
                f"{reason}, got {self.bundle.source}; vitkit.capture in Python returns its attention weights"
            ) from None


def open_attention_model(source: str | Path | Bundle, class_names: Sequence[str] = ()) -> AttentionModel:
    """Open a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, or a bundle that is open already.

    Models that vitkit supports are converted; other models of timm are used as they are.

    Args: class_names: classes for a CLIP to distinguish.
    Raises: ValueError, one line.
    """
    if not isinstance(source, Bundle) and (timm_model := open_timm_model(str(source))):
        if class_names:
            raise ValueError(f"classes must be given for a CLIP only, got them for {source}")
        return timm_model
    if not class_names:
        return make_attention_model(open_image_tower(source))
    bundle = source if isinstance(source, Bundle) else open_model(source)
    if "texts" not in get_inputs(bundle.model):
        raise ValueError(f"classes must be given for a CLIP only, got them for {bundle.source}")
    return make_attention_model(zero_shot(bundle, class_names))


def make_attention_model(bundle: Bundle) -> AttentionModel:
    """Return the attention model of a bundle; a decoder or text tower does not run."""
    model = require_image_model(bundle.model)

    def run(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return model.head(model.pool(model.features(images)))

    attention_model = AttentionModel(bundle, run, ())
    autoencoder = find_masked_autoencoder(attention_model.model)
    idle = set() if autoencoder is None else {*autoencoder.decoder.modules()}
    layers = find_attention_layers(attention_model.model)
    return attention_model._replace(layers=tuple(name for name, layer in layers.items() if layer not in idle))


def open_timm_model(source: str) -> AttentionModel | None:
    """Return a model of timm that vitkit does not support, None for any other source."""
    if not source.startswith("timm:"):
        return None
    from vitkit.convert.timm.catalog import create_timm_model, read_timm_class_names, read_timm_preprocess
    from vitkit.convert.timm.config import read_facts

    name = source.removeprefix("timm:")
    if Path(name).is_dir():
        name = f"local-dir:{name}"
    with torch.device("meta"):
        model = create_timm_model(source, name, pretrained=False)
    try:
        read_facts(model)
    except ValueError:
        model = create_timm_model(source, name, pretrained=True).eval()
    else:
        return None
    preprocess, _ = read_timm_preprocess(model)
    outputs = cast(int, model.num_classes)
    names, _ = read_timm_class_names(cast(dict[str, object], model.pretrained_cfg), outputs)
    class_names = tuple(map(str, range(outputs))) if names is None else names
    bundle = Bundle(model, {}, preprocess, class_names, source=source)
    return AttentionModel(bundle, model, tuple(find_attention_layers(model)))
