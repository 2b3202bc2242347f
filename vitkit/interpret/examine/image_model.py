"""The models that `attend`, `heads` and `explain` look at: image models of anybody's, with what it takes to run them.

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
from vitkit.models.parts import find_image_tower, find_masked_autoencoder, get_inputs, image_model


class AttentionModel(NamedTuple):
    """A model whose attention is examined.

    Args:
        bundle: all that `run` uses, so that moving its model to a device moves that. Of a model that compares images
            with texts, the texts are its class names.
        run: (B, K) logits of the class names; without class names the vectors of the images.
        layers: the names of the layers that make the image's vector, first to last.
    """

    bundle: Bundle
    run: Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B K"]]
    layers: tuple[str, ...]

    @property
    def model(self) -> nn.Module:
        """The module that hooks go on: the image tower; a model of another library as it is."""
        tower = find_image_tower(self.bundle.model)
        return self.bundle.model if tower is None else tower

    @property
    def preprocess(self) -> Preprocess:
        return get_preprocess(self.bundle)

    @property
    def layout(self) -> Layout:
        """Raises: ValueError for a model whose tokens are not known."""
        try:
            return layout_of(self.model, self.preprocess.size)
        except ValueError as error:
            reason = str(error).removesuffix("; give a Layout")  # which no command takes
            raise ValueError(
                f"{reason}, got {self.bundle.source}; in Python vitkit.capture gives weights alone"
            ) from None


def open_attention_model(source: str | Path | Bundle, class_names: Sequence[str] = ()) -> AttentionModel:
    """Open a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, or a bundle that is open already.

    What vitkit can hold is opened as its own; other models of timm as they are.

    Args: class_names: what a CLIP is to tell apart, in words.
    Raises: ValueError, one line.
    """
    if not isinstance(source, Bundle) and (foreign := of_timm(str(source))):
        if class_names:
            raise ValueError(f"classes must be given for a CLIP only, got them for {source}")
        return foreign
    if not class_names:
        return attention_model(open_image_tower(source))
    bundle = source if isinstance(source, Bundle) else open_model(source)
    if "texts" not in get_inputs(bundle.model):
        raise ValueError(f"classes must be given for a CLIP only, got them for {bundle.source}")
    return attention_model(zero_shot(bundle, class_names))


def attention_model(bundle: Bundle) -> AttentionModel:
    """Return an image model to be examined. Its decoder and its text tower, where it has one, do not run."""
    model = image_model(bundle.model)

    def run(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return model.head(model.pool(model.features(images)))

    examined = AttentionModel(bundle, run, ())
    autoencoder = find_masked_autoencoder(examined.model)
    idle = set() if autoencoder is None else {*autoencoder.decoder.modules()}
    layers = tuple(name for name, layer in find_attention_layers(examined.model).items() if layer not in idle)
    return examined._replace(layers=layers)


def of_timm(source: str) -> AttentionModel | None:
    """Return a model of timm that vitkit cannot hold, None for everything else."""
    if not source.startswith("timm:"):
        return None
    from vitkit.convert.timm.catalog import create_timm_model, read_class_names, read_timm_preprocess
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
    names, _ = read_class_names(cast(dict[str, object], model.pretrained_cfg), outputs)
    class_names = tuple(map(str, range(outputs))) if names is None else names
    bundle = Bundle(model, {}, preprocess, class_names, source=source)
    return AttentionModel(bundle, model, tuple(find_attention_layers(model)))
