"""What an optimiser is given: parameter groups, and a learning rate that follows the optimiser's steps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.optim import AdamW, Optimizer

from vitkit.models.parts import layers_by_tower


class Group(NamedTuple):
    """Parameters, by name, that are trained alike."""

    name: str
    lr: float
    weight_decay: int | float
    parameters: dict[str, nn.Parameter]

    @property
    def options(self) -> dict[str, Any]:
        """As an optimiser takes it."""
        params = [*self.parameters.values()]
        return {"name": self.name, "params": params, "lr": self.lr, "weight_decay": self.weight_decay}


def groups(model: nn.Module, lr: float, weight_decay: int | float, layer_decay: float = 1.0) -> list[Group]:
    """`decayed` and `plain`: only the matrices that multiply (linear and convolution weights) decay.

    Biases, norms, layer scales, prefix and mask tokens, position tables and everything else that is added stay plain.
    With a layer decay d below 1 there are two groups for each layer, and the learning rate is lr d^(depth + 1 - layer):
    layer 0 is the embedding, with the norm behind it, 1 to depth the blocks, depth + 1 what follows (BEiT,
    https://arxiv.org/abs/2106.08254). Blocks of several Encoders in a row are counted through.
    Of two towers each is counted down from its own last block, so that equal rates meet at the top. All of the decoder
    of a masked autoencoder, its blocks too, learns at the full rate: `get_layer_id_for_vit` in the code of MAE
    (https://github.com/facebookresearch/mae, util/lr_decay.py) gives the last layer to whatever is none of cls_token,
    pos_embed, patch_embed and blocks.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay must be above 0 and at most 1, got layer_decay={layer_decay}")
    matrices = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    }
    layers, last = number_layers(model) if layer_decay < 1 else ({}, 0)
    found: dict[tuple[int, bool], dict[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = layers.get(id(parameter), last), id(parameter) not in matrices
            found.setdefault(key, {})[name] = parameter
    return [
        Group(
            (f"layer {layer} " if layers else "") + ("plain" if plain else "decayed"),
            lr * layer_decay ** (last - layer),
            0.0 if plain else weight_decay,
            found[layer, plain],
        )
        for layer, plain in sorted(found)
    ]


def number_layers(model: nn.Module) -> tuple[dict[int, int], int]:
    """Return the layer of each parameter, by its id, up to the last block, and the layer of all others."""
    towers = layers_by_tower(model)
    if not towers:
        raise ValueError(f"layer_decay must be 1 for a model without an Encoder, got {type(model).__name__}")
    deepest = max(len(tower.blocks) for tower in towers)
    numbers = {
        id(parameter): layer
        for tower in towers
        for layer, modules in enumerate(tower.modules, deepest - len(tower.blocks))
        for module in modules
        for parameter in module.parameters()
    }
    return numbers, 1 + deepest


def format_groups(found: Sequence[Group]) -> str:
    lines = [f"{'group':<18}{'tensors':>8}{'parameters':>14}{'decay':>8}{'lr':>12}"]
    for name, lr, decay, parameters in found:
        size = sum(parameter.numel() for parameter in parameters.values())
        lines.append(f"{name:<18}{len(parameters):>8}{size:>14,}{decay:>8g}{lr:>12.4g}")
    return "\n".join(lines)


def listing(model: nn.Module, found: Sequence[Group]) -> str:
    """Every parameter of the model by name, and how it is trained."""
    owners = {id(parameter): group for group in found for parameter in group.parameters.values()}
    wide = max(len(name) for name, _ in model.named_parameters())
    lines = [f"{'parameter':<{wide}}  {'shape':<18}{'group':<18}{'decay':>8}{'lr':>12}"]
    for name, parameter in model.named_parameters():
        group = owners.get(id(parameter))
        how = f"{group.name:<18}{group.weight_decay:>8g}{group.lr:>12.4g}" if group else "frozen"
        lines.append(f"{name:<{wide}}  {' x '.join(map(str, parameter.shape)):<18}{how}")
    return "\n".join(lines)


def has_fused(devices: Collection[str]) -> bool:
    """Return whether AdamW updates parameters on these types of device in one kernel.

    A step of ViT-Ti/16 on one thread of a CPU takes a third of the time that it takes PyTorch's default (torch 2.14).
    PyTorch has kernels for more devices, such as MPS, which nobody has tried here.
    """
    return bool(devices) and {*devices} <= {"cpu", "cuda"}


def choose_kernel(optimizer: Optimizer) -> None:
    """Make AdamW fused where `has_fused`, and keep that choice when a state is loaded.

    Groups that were given `fused` or `foreach` stay as they are, and so does any other optimiser.
    """
    if not isinstance(optimizer, AdamW):
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    real = all(parameter.is_floating_point() for parameter in parameters)
    if has_fused({parameter.device.type for parameter in parameters}) and real:
        for group in optimizer.param_groups:
            if group["fused"] is None and group["foreach"] is None and not group["differentiable"]:
                # The constructor's `fused` would also say that the optimiser unscales gradients itself, which Lightning
                # then refuses to clip.
                group["fused"] = True

    def keep(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state whose groups, written on another device or by an older version, keep the present choice."""
        kernels = [{"fused": group["fused"], "foreach": group["foreach"]} for group in optimizer.param_groups]
        if len(kernels) != len(state["param_groups"]):
            return state  # which load_state_dict refuses
        groups = [{**group, **kernel} for group, kernel in zip(state["param_groups"], kernels, strict=True)]
        return {**state, "param_groups": groups}

    optimizer.register_load_state_dict_pre_hook(keep)


class Schedule(ABC):
    """A factor for the learning rate at each of the `total` optimiser steps of a run: up linearly over `warmup`.

    Args: warmup: steps; below 1 it is a share of all.
    """

    def __init__(self, total: int, *, warmup: int | float = 0) -> None:
        if not 0 <= warmup < total:
            raise ValueError(
                f"warmup must be at least 0 and below the {total} steps of the run, got warmup={warmup:g}; "
                "set model.schedule.warmup, below 1 it is a share"
            )
        self.total, self.warmup = total, int(warmup * total if warmup < 1 else warmup)

    def __call__(self, step: int) -> float:
        return (step + 1) / (self.warmup + 1) if step < self.warmup else self.after(step - self.warmup)

    @abstractmethod
    def after(self, step: int) -> float:
        """The factor so many steps after the warm-up."""


class WarmupCosine(Schedule):
    """Along a cosine down to `floor` at the last step.

    SGDR without restarts, https://arxiv.org/abs/1608.03983, equation 5.
    """

    def __init__(self, total: int, *, warmup: int | float = 0, floor: float = 0.0) -> None:
        super().__init__(total, warmup=warmup)
        self.floor = floor

    def after(self, step: int) -> float:
        progress = min(1.0, step / max(1, self.total - 1 - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2


class InverseSquareRoot(Schedule):
    """(1 + n / timescale)^(-1/2) after n steps, and linearly to 0 over the last `cooldown` ones.

    https://arxiv.org/abs/2106.04560, section 3.5: a run may be cooled down at any length, or go on.
    """

    def __init__(self, total: int, *, warmup: int | float = 0, timescale: int = 10_000, cooldown: int = 0) -> None:
        super().__init__(total, warmup=warmup)
        if timescale < 1 or not 0 <= cooldown <= total - self.warmup:
            raise ValueError(
                "timescale must be at least 1 and cooldown fit in the steps after the warm-up, "
                f"got timescale={timescale}, cooldown={cooldown} of {total - self.warmup}"
            )
        self.timescale, self.cooldown = timescale, cooldown

    def after(self, step: int) -> float:
        left = max(0, self.total - 1 - self.warmup - step)
        cooling = left / self.cooldown if left < self.cooldown else 1.0
        return (1 + step / self.timescale) ** -0.5 * cooling
