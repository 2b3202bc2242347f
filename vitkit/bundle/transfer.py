"""Load the weights of another model: for a new head, image size or number of channels, or for one tower."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.weights import get_shapes, load
from vitkit.data.preprocess import Preprocess
from vitkit.models.parts import find_masked_autoencoder, get_inputs
from vitkit.nn import Learned, PatchEmbed
from vitkit.support.errors import format_count


def load_pretrained(
    bundle: Bundle, model: nn.Module, classes: tuple[str, ...], preprocess: Preprocess | None
) -> list[str]:
    """Copy the weights of a bundle into a model of the same architecture, and return notes on what differs.

    The head stays new unless the classes are those of the bundle. A classifier takes the encoder of an MAE without the
    decoder. A bias that the bundle's model lacks stays new. Weights of patches are adapted by `adapt_channels`; a
    learned table is resampled to the grid of the model. Any other difference is an error that lists it.

    Args: preprocess: of the images of the model; None for a model that reads none.
    """
    source = bundle.model
    to_mae, from_mae = (find_masked_autoencoder(network) is not None for network in (model, source))
    if to_mae and not from_mae:
        raise ValueError(
            f"pretrained must be an MAE to be pretrained further, got {type(source).__name__} in {bundle.source}"
        )
    if get_inputs(model) not in ((), get_inputs(source)):
        raise ValueError(f"pretrained must be a {type(model).__name__}, got {type(source).__name__} in {bundle.source}")
    state, notes = adapt_state(model, source)
    notes.insert(0, f"weights of {bundle.source}")
    has_head = any(name.startswith("head.") for name in {*state, *model.state_dict()})
    missing, unused = [], ()
    if {"image", "text"} <= dict(model.named_children()).keys():
        notes.append("both towers")
    if to_mae:
        notes.append("the decoder too")
    elif from_mae:
        unused = ("decoder.*",)
        notes.append("the decoder is left behind")
    if has_head and not from_mae and bundle.class_names == classes:
        notes.append("the head too, of the same classes")
    elif has_head:
        missing.append("head.*")
        state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
        notes.append(f"a new head for {format_count(len(classes), 'classes')}")
    if "bias" in model.state_dict() and "bias" not in state:
        missing.append("bias")
        notes.append("a new bias")
    if bundle.preprocess is not None and preprocess is not None:
        old, new = asdict(bundle.preprocess), asdict(preprocess)
        notes += [f"{name} {new[name]}, was {value}" for name, value in old.items() if value != new[name]]
    try:
        load(model, state, missing=missing, unused=unused)
    except ValueError as error:
        remedy = f"leave out the sizes that override those of {bundle.source}, as configs/finetune_folder.yaml does"
        raise ValueError(f"{error}\n{remedy}") from error
    return notes


def load_pretrained_tower(bundle: Bundle, model: nn.Module, name: str) -> list[str]:
    """Copy the weights of a bundle into the part of a model with this name, and return notes on what differs.

    They are those of the part with the same name, or of the whole model if it has the same inputs: for
    images a ViT or the encoder of an MAE. The head stays new unless it comes from such a part and has as many outputs.
    """
    if (tower := dict(model.named_children()).get(name)) is None:
        parts = ", ".join(part for part, _ in model.named_children())
        raise ValueError(
            f"pretrained_{name} must be for a model with a part {name}, got {type(model).__name__} of {parts}"
        )
    whole = bundle.model
    part = dict(whole.named_children()).get(name)
    if part is None and get_inputs(whole) != get_inputs(tower):
        raise ValueError(
            f"pretrained_{name} must be a model with a part {name}, or be such a part, "
            f"got {type(whole).__name__} in {bundle.source}"
        )
    source = whole if part is None else part
    unused = () if find_masked_autoencoder(source) is None else ("decoder.*",)
    state, notes = adapt_state(tower, source)
    notes = [f"{name} tower: weights of {bundle.source}", *notes, *(["the decoder is left behind"] if unused else [])]
    shapes = get_shapes(tower.state_dict())
    heads = {key for key in {*state, *shapes} if key.startswith("head.")}
    if part is not None and all(
        key in state and shapes.get(key, state[key].shape) == state[key].shape for key in heads
    ):
        load(tower, state)
        return [*notes, *(["the head too"] if heads else [])]
    state = {key: tensor for key, tensor in state.items() if key not in heads}
    load(tower, state, missing=("head.*",), unused=unused)
    return [*notes, "a new head"]


def adapt_state(model: nn.Module, source: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of `source`, adapted to the grid and channels of `model`, and notes on the changes."""
    state, notes = source.state_dict(), []
    modules = dict(model.named_modules())
    for name, module in source.named_modules():
        match module, modules.get(name):
            case Learned(), Learned() as table if table.grid != module.grid:
                state[f"{name}.weight"] = module.resize_table(table.grid).detach()
                notes.append(f"{name} from {module.grid} to {table.grid}")
            case PatchEmbed(), PatchEmbed() as embed if embed.patches.in_channels != module.patches.in_channels:
                old, new = module.patches.in_channels, embed.patches.in_channels
                state[f"{name}.patches.weight"] = adapt_channels(module.patches.weight.detach(), new)
                notes.append(f"{name}.patches from {old} to {new} channels")
    before, after = find_masked_autoencoder(source), find_masked_autoencoder(model)
    if before is not None and after is not None:
        old, new = before.embed.patches.in_channels, after.embed.patches.in_channels
        for name in ("decoder.pixels.weight", "decoder.pixels.bias") if old != new else ():
            state[name] = adapt_decoder_channels(state[name], old, new)
    return state, notes


def adapt_channels(weight: Float[Tensor, "D C h w"], channels: int) -> Float[Tensor, "D channels h w"]:
    """Adapt patch weights to another number of channels, as timm's adapt_input_conv does.

    For one channel they are summed: a grey image gives the same output as in RGB. For more channels they are repeated
    in turn and scaled by old / new, which keeps the size of the output; from one channel this inverts the sum.
    """
    old = weight.shape[1]
    if channels == 1:
        return weight.sum(1, keepdim=True)
    return weight[:, torch.arange(channels) % old] * (old / channels)


def adapt_decoder_channels(values: Float[Tensor, "Q ..."], old: int, new: int) -> Float[Tensor, "R ..."]:
    """Adapt a decoder's outputs, (p, q, C) flat, to other channels: to one as the mean, to more repeated in turn."""
    pixels = values.unflatten(0, (-1, old))
    return (pixels.mean(1, keepdim=True) if new == 1 else pixels[:, torch.arange(new) % old]).flatten(0, 1)


def make_classifier_config(config: Mapping[str, object], outputs: int) -> dict[str, Any]:
    """Convert the config of an MAE to that of a ViT with its encoder, which pools the mean of the patch tokens.

    This is how MAE's code fine-tunes, but with the norm before the mean.
    """
    mae = cast(Mapping[str, Any], config.get("init_args", {}))
    shared = {name: mae[name] for name in ("encoder", "image_size", "patch_size", "channels", "prefix") if name in mae}
    table = mae.get("table", "vitkit.nn.Sinusoidal")  # the default of MAE, which is not ViT's
    arguments = {**shared, "outputs": outputs, "table": table, "pool": "vitkit.nn.Mean", "init": "vitkit.nn.init.mae"}
    return {"class_path": "vitkit.models.ViT", "init_args": arguments}
