"""Start from the weights of another model: a new head, another image size, another number of channels."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.nn import Learned, PatchEmbed
from vitkit.preprocess import Preprocess
from vitkit.weights import load, open_model


def start_from(folder: str | Path, model: nn.Module, classes: tuple[str, ...], preprocess: Preprocess) -> list[str]:
    """Copy a model folder's weights into a model of the same architecture, and tell what is not as it was.

    The head stays new unless the classes are the folder's; patch weights follow `for_channels`; a learned table is
    resampled by its own rule to the model's grid. Whatever else differs is an error that lists it.
    """
    source, before, names, _ = open_model(folder)
    state = source.state_dict()
    told = [f"weights of {folder}"]
    own = dict(model.named_modules())
    for name, module in source.named_modules():
        match module, own.get(name):
            case Learned(), Learned() as table if table.grid != module.grid:
                state[f"{name}.weight"] = module.at(table.grid).detach()
                told.append(f"{name} from {module.grid} to {table.grid}")
            case PatchEmbed(), PatchEmbed() as embed if embed.patches.in_channels != module.patches.in_channels:
                channels = embed.patches.in_channels
                state[f"{name}.patches.weight"] = for_channels(module.patches.weight.detach(), channels)
                told.append(f"{name}.patches from {module.patches.in_channels} to {channels} channels")
    head = () if names == classes else ("head.*",)
    if head:
        state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    told.append(f"a new head for {len(classes)} classes" if head else "the head too, of the same classes")
    for name, value in before.to_dict().items():
        if value != preprocess.to_dict()[name]:
            told.append(f"{name} {preprocess.to_dict()[name]}, was {value}")
    load(model, state, missing=head)
    return told


def for_channels(weight: Float[Tensor, "D C h w"], channels: int) -> Float[Tensor, "D channels h w"]:
    """Patch weights for another number of channels, as timm's adapt_input_conv makes them.

    To one channel they are summed: a grey picture gives what it gives as RGB. To more they are repeated in turn and
    scaled by old / new, which keeps the size of the response; from one channel that is the inverse of the sum.
    """
    old = weight.shape[1]
    if channels == 1:
        return weight.sum(1, keepdim=True)
    return weight[:, torch.arange(channels) % old] * (old / channels)
