"""Start from the weights of another model: a new head, another image size, another number of channels, one tower."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle.bundle import get_preprocess
from vitkit.bundle.folder import open_folder
from vitkit.bundle.weights import load
from vitkit.data.preprocess import Preprocess
from vitkit.models.parts import find_masked_autoencoder, get_inputs
from vitkit.nn import Learned, PatchEmbed

PAIRS = ("images", "texts")  # the inputs of a model of two towers


def start_from(
    folder: str | Path, model: nn.Module, classes: tuple[str, ...], preprocess: Preprocess | None
) -> list[str]:
    """Copy a model folder's weights into a model of the same architecture, and tell what is not as it was.

    A head stays new unless the classes are the folder's; of an MAE a classifier takes the encoder and leaves the
    decoder. A model of two towers keeps both, and a bias that it did not have is new. Weights of patches follow
    `for_channels`; a learned table is resampled by its own rule to the model's grid. Whatever else differs is an error
    that lists it.
    """
    bundle = open_folder(folder)
    source = bundle.model
    further, pretrained = (find_masked_autoencoder(network) is not None for network in (model, source))
    if further and not pretrained:
        raise ValueError(f"pretrained must be an MAE to be pretrained further, got {type(source).__name__} in {folder}")
    fitted, told = state_for(model, source)
    told.insert(0, f"weights of {folder}")
    missing, unused = (), ()
    if PAIRS in (get_inputs(model), get_inputs(source)):
        if type(model) is not type(source):
            raise ValueError(f"pretrained must be a {type(model).__name__}, got {type(source).__name__} in {folder}")
        told.append("both towers")
        if "bias" in model.state_dict() and "bias" not in fitted:
            missing = ("bias",)
            told.append("a new bias")
    elif further:
        told.append("the decoder too")
    elif pretrained:
        missing, unused = ("head.*",), ("decoder.*",)
        told += ["the decoder is left behind", f"a new head for {len(classes)} classes"]
    elif bundle.class_names == classes:
        told.append("the head too, of the same classes")
    else:
        missing = ("head.*",)
        fitted = {name: tensor for name, tensor in fitted.items() if not name.startswith("head.")}
        told.append(f"a new head for {len(classes)} classes")
    now = {} if preprocess is None else preprocess.to_dict()
    before = get_preprocess(bundle).to_dict() if now else {}
    told += [f"{name} {value}, was {before[name]}" for name, value in now.items() if value != before[name]]
    load(model, fitted, missing=missing, unused=unused)
    return told


def start_tower(folder: str | Path, model: nn.Module, name: str) -> list[str]:
    """Copy a model folder's weights into the tower `image` or `text` of a CLIP, and tell what is not as it was.

    The folder's model is a CLIP, of which the same tower is taken, or for images a ViT or the encoder of an MAE. A head
    stays new unless it has the same axes to give and comes from a CLIP.
    """
    if get_inputs(model) != PAIRS:
        raise ValueError(f"pretrained_{name} must be for a model of two towers, got {type(model).__name__}")
    source, own = open_folder(folder).model, model.get_submodule(name)
    paired = get_inputs(source) == PAIRS
    unused = () if find_masked_autoencoder(source) is None else ("decoder.*",)
    source = source.get_submodule(name) if paired else source
    fitted, told = state_for(own, source)
    told = [f"{name} tower: weights of {folder}", *told, *(["the decoder is left behind"] if unused else [])]
    heads = {key for key in {*fitted, *own.state_dict()} if key.startswith("head.")}
    if paired and all(
        key in fitted and fitted[key].shape == own.state_dict().get(key, fitted[key]).shape for key in heads
    ):
        told.append("the head too")
        load(own, fitted)
        return told
    kept = {key: tensor for key, tensor in fitted.items() if key not in heads}
    load(own, kept, missing=("head.*",), unused=unused)
    return [*told, "a new head"]


def state_for(model: nn.Module, source: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """The parameters of `source` for another grid or number of channels, and what was changed."""
    state, told = source.state_dict(), []
    own = dict(model.named_modules())
    for name, module in source.named_modules():
        match module, own.get(name):
            case Learned(), Learned() as table if table.grid != module.grid:
                state[f"{name}.weight"] = module.at(table.grid).detach()
                told.append(f"{name} from {module.grid} to {table.grid}")
            case PatchEmbed(), PatchEmbed() as embed if embed.patches.in_channels != module.patches.in_channels:
                old, new = module.patches.in_channels, embed.patches.in_channels
                state[f"{name}.patches.weight"] = for_channels(module.patches.weight.detach(), new)
                told.append(f"{name}.patches from {old} to {new} channels")
    before, after = find_masked_autoencoder(source), find_masked_autoencoder(model)
    if before is not None and after is not None:
        old, new = before.embed.patches.in_channels, after.embed.patches.in_channels
        for name in ("decoder.pixels.weight", "decoder.pixels.bias") if old != new else ():
            state[name] = said_for_channels(state[name], old, new)
    return state, told


def for_channels(weight: Float[Tensor, "D C h w"], channels: int) -> Float[Tensor, "D channels h w"]:
    """Patch weights for another number of channels, as timm's adapt_input_conv makes them.

    To one channel they are summed: a grey picture gives what it gives as RGB. To more they are repeated in turn and
    scaled by old / new, which keeps the size of the response; from one channel that is the inverse of the sum.
    """
    old = weight.shape[1]
    if channels == 1:
        return weight.sum(1, keepdim=True)
    return weight[:, torch.arange(channels) % old] * (old / channels)


def said_for_channels(values: Float[Tensor, "Q ..."], old: int, new: int) -> Float[Tensor, "R ..."]:
    """What a decoder says of each pixel, (p, q, C) in a row, for another number of channels: their mean, or in turn."""
    pixels = values.unflatten(0, (-1, old))
    return (pixels.mean(1, keepdim=True) if new == 1 else pixels[:, torch.arange(new) % old]).flatten(0, 1)


def make_classifier_config(config: Mapping[str, object], outputs: int) -> dict[str, Any]:
    """The config of an MAE -> that of a ViT with its encoder, which pools the patch tokens by their mean.

    As MAE's code fine-tunes, but for the norm, which stays in front of the mean.
    """
    own = cast(Mapping[str, Any], config.get("init_args", {}))
    shared = {name: own[name] for name in ("encoder", "image_size", "patch_size", "channels", "prefix") if name in own}
    table = own.get("table", "vitkit.nn.Sinusoidal")  # MAE's own default, which is not ViT's
    arguments = {**shared, "outputs": outputs, "table": table, "pool": "vitkit.nn.Mean", "init": "vitkit.nn.init.mae"}
    return {"class_path": "vitkit.models.ViT", "init_args": arguments}
