"""Start from the weights of another model: a new head, another image size, another number of channels, one tower."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle.folder import open_folder
from vitkit.bundle.weights import load
from vitkit.data.preprocess import Preprocess
from vitkit.models.parts import find_masked_autoencoder, get_inputs
from vitkit.nn import Learned, PatchEmbed


def start_from(
    folder: str | Path, model: nn.Module, classes: tuple[str, ...], preprocess: Preprocess | None
) -> list[str]:
    """Copy a model folder's weights into a model of the same architecture, and tell what is not as it was.

    A head stays new unless the classes are the folder's; of an MAE a classifier takes the encoder and leaves the
    decoder. A bias that the folder's model did not have is new. Weights of patches follow `for_channels`; a learned
    table is resampled by its own rule to the model's grid. Whatever else differs is an error that lists it.

    Args: preprocess: of the model's images, None where it reads none.
    """
    bundle = open_folder(folder)
    source = bundle.model
    further, pretrained = (find_masked_autoencoder(network) is not None for network in (model, source))
    if further and not pretrained:
        raise ValueError(f"pretrained must be an MAE to be pretrained further, got {type(source).__name__} in {folder}")
    if get_inputs(model) not in ((), get_inputs(source)):
        raise ValueError(f"pretrained must be a {type(model).__name__}, got {type(source).__name__} in {folder}")
    fitted, told = state_for(model, source)
    told.insert(0, f"weights of {folder}")
    headed = any(name.startswith("head.") for name in {*fitted, *model.state_dict()})
    missing, unused = [], ()
    if {"image", "text"} <= dict(model.named_children()).keys():
        told.append("both towers")
    if further:
        told.append("the decoder too")
    elif pretrained:
        unused = ("decoder.*",)
        told.append("the decoder is left behind")
    if headed and not pretrained and bundle.class_names == classes:
        told.append("the head too, of the same classes")
    elif headed:
        missing.append("head.*")
        fitted = {name: tensor for name, tensor in fitted.items() if not name.startswith("head.")}
        told.append(f"a new head for {len(classes)} classes")
    if "bias" in model.state_dict() and "bias" not in fitted:
        missing.append("bias")
        told.append("a new bias")
    if bundle.preprocess is not None and preprocess is not None:
        now = preprocess.to_dict()
        differences = ((name, was) for name, was in bundle.preprocess.to_dict().items() if was != now[name])
        told += [f"{name} {now[name]}, was {was}" for name, was in differences]
    load(model, fitted, missing=missing, unused=unused)
    return told


def start_tower(folder: str | Path, model: nn.Module, name: str) -> list[str]:
    """Copy a model folder's weights into the part of a model that has this name, and tell what is not as it was.

    The part of the same name is taken of the folder's model, or all of it where it reads what the part does: for images
    a ViT or the encoder of an MAE. A head stays new unless it is that of such a part and has as many outputs.
    """
    if (own := dict(model.named_children()).get(name)) is None:
        parts = ", ".join(part for part, _ in model.named_children())
        raise ValueError(
            f"pretrained_{name} must be for a model with a part {name}, got {type(model).__name__} of {parts}"
        )
    whole = open_folder(folder).model
    part = dict(whole.named_children()).get(name)
    if part is None and get_inputs(whole) != get_inputs(own):
        raise ValueError(
            f"pretrained_{name} must be the folder of a model with a part {name}, or of one that is such a part, "
            f"got {type(whole).__name__} in {folder}"
        )
    source = whole if part is None else part
    unused = () if find_masked_autoencoder(source) is None else ("decoder.*",)
    fitted, told = state_for(own, source)
    told = [f"{name} tower: weights of {folder}", *told, *(["the decoder is left behind"] if unused else [])]
    state = own.state_dict()
    heads = {key for key in {*fitted, *state} if key.startswith("head.")}
    if part is not None and all(
        key in fitted and fitted[key].shape == state.get(key, fitted[key]).shape for key in heads
    ):
        load(own, fitted)
        return [*told, *(["the head too"] if heads else [])]
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
