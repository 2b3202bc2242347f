"""Parameter groups, layer decay, and schedules of the learning rate, counted in optimiser steps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.optim import AdamW, Optimizer

from vitkit.models.parts import get_layers_by_tower


class Group(NamedTuple):
    """Parameters, by name, with one learning rate and weight decay."""

    name: str
    lr: float
    weight_decay: int | float
    parameters: dict[str, nn.Parameter]

    @property
    def options(self) -> dict[str, Any]:
        """The group as an argument of an optimiser."""
        params = [*self.parameters.values()]
        return {"name": self.name, "params": params, "lr": self.lr, "weight_decay": self.weight_decay}


def group_parameters(model: nn.Module, lr: float, weight_decay: int | float, layer_decay: float = 1.0) -> list[Group]:
    """Split the trained parameters into `decayed`, the weights of linear layers and convolutions, and `plain` ones.

    Plain ones have no weight decay: biases, norms, layer scales, prefix and mask tokens, position tables and whatever
    else is added.

    A layer decay d below 1 makes two groups for each layer, with the learning rate lr d^(depth + 1 - layer) (BEiT,
    https://arxiv.org/abs/2106.08254). Layer 0 is the embedding with the norm after it, layers 1 to depth are the
    blocks, and layer depth + 1 is the rest. Consecutive Encoders are numbered through. With two towers, each counts
    down from its own last block, so that rates are equal at the top. The whole decoder of a masked autoencoder has the
    full rate, as `get_layer_id_for_vit` in MAE's code (https://github.com/facebookresearch/mae, util/lr_decay.py) gives
    the last layer to all but cls_token, pos_embed, patch_embed and blocks.

    Raises: ValueError for a layer decay outside of (0, 1], and for one below 1 of a model without an Encoder.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay must be above 0 and at most 1, got layer_decay={layer_decay}")
    matrices = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    }
    layers, last = number_layers(model) if layer_decay < 1 else ({}, 0)
    groups: dict[tuple[int, bool], dict[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = layers.get(id(parameter), last), id(parameter) not in matrices
            groups.setdefault(key, {})[name] = parameter
    return [
        Group(
            (f"layer {layer} " if layers else "") + ("plain" if plain else "decayed"),
            lr * layer_decay ** (last - layer),
            0.0 if plain else weight_decay,
            groups[layer, plain],
        )
        for layer, plain in sorted(groups)
    ]


def number_layers(model: nn.Module) -> tuple[dict[int, int], int]:
    """Return the layer of each parameter up to the last block, by its id, and the layer of all others."""
    towers = get_layers_by_tower(model)
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


def format_groups(groups: Sequence[Group]) -> str:
    """Return a table with a line for each group."""
    lines = [f"{'group':<18}{'tensors':>8}{'parameters':>14}{'decay':>8}{'lr':>12}"]
    for name, lr, decay, parameters in groups:
        size = sum(parameter.numel() for parameter in parameters.values())
        lines.append(f"{name:<18}{len(parameters):>8}{size:>14,}{decay:>8g}{lr:>12.4g}")
    return "\n".join(lines)


def format_parameters(model: nn.Module, groups: Sequence[Group]) -> str:
    """Return a table with a line for each parameter of the model and its group, or "frozen"."""
    owners = {id(parameter): group for group in groups for parameter in group.parameters.values()}
    width = max(len(name) for name, _ in model.named_parameters())
    lines = [f"{'parameter':<{width}}  {'shape':<18}{'group':<18}{'decay':>8}{'lr':>12}"]
    for name, parameter in model.named_parameters():
        group = owners.get(id(parameter))
        options = f"{group.name:<18}{group.weight_decay:>8g}{group.lr:>12.4g}" if group else "frozen"
        lines.append(f"{name:<{width}}  {' x '.join(map(str, parameter.shape)):<18}{options}")
    return "\n".join(lines)


def has_fused(devices: Collection[str]) -> bool:
    """Return whether AdamW has a fused kernel for these types of device.

    For ViT-Ti/16 on one CPU thread it takes a third of the time of PyTorch's default (torch 2.14). PyTorch has kernels
    for more devices, such as MPS, which are untested here.
    """
    return bool(devices) and {*devices} <= {"cpu", "cuda"}


def choose_kernel(optimizer: Optimizer) -> None:
    """Use AdamW's fused kernel where there is one, also after a state is loaded.

    Groups with an explicit `fused` or `foreach`, and other optimisers, stay as they are.
    """
    if not isinstance(optimizer, AdamW):
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    is_real = all(parameter.is_floating_point() for parameter in parameters)
    if is_real and has_fused({parameter.device.type for parameter in parameters}):
        for group in optimizer.param_groups:
            if group["fused"] is None and group["foreach"] is None and not group["differentiable"]:
                # The constructor's `fused` would also declare that the optimiser unscales gradients itself, and
                # Lightning refuses to clip those.
                group["fused"] = True

    def keep_kernels(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Keep the present `fused` and `foreach`: a state may come from another device or an older version."""
        kernels = [{"fused": group["fused"], "foreach": group["foreach"]} for group in optimizer.param_groups]
        if len(kernels) != len(state["param_groups"]):
            return state  # load_state_dict refuses it
        group_parameters = [{**group, **kernel} for group, kernel in zip(state["param_groups"], kernels, strict=True)]
        return {**state, "param_groups": group_parameters}

    optimizer.register_load_state_dict_pre_hook(keep_kernels)


class Schedule(ABC):
    """Abstract: the factor of the learning rate at each of the `total` optimiser steps, rising linearly over `warmup`.

    Args:
        warmup: number of steps, or below 1 a share of all. A tenth of all steps if they are not more than this number;
            `note` then says so.
    """

    note = ""

    def __init__(self, total: int, *, warmup: int | float = 0) -> None:
        if warmup < 0:
            raise ValueError(f"warmup must be at least 0, a number of steps or below 1 a share, got warmup={warmup:g}")
        self.total, self.warmup = total, int(warmup * total if warmup < 1 else warmup)
        if warmup >= max(1, total):
            self.warmup = total // 10
            self.note = f"warmup is {self.warmup}, a tenth of the {total} steps of the run, not {warmup:g}"

    def __call__(self, step: int) -> float:
        return (step + 1) / (self.warmup + 1) if step < self.warmup else self.decay(step - self.warmup)

    @abstractmethod
    def decay(self, step: int) -> float:
        """Return the factor so many steps after the warm-up."""


class WarmupCosine(Schedule):
    """Cosine decay to `floor` at the last step: SGDR without restarts, https://arxiv.org/abs/1608.03983, equation 5."""

    def __init__(self, total: int, *, warmup: int | float = 0, floor: float = 0.0) -> None:
        super().__init__(total, warmup=warmup)
        self.floor = floor

    def decay(self, step: int) -> float:
        progress = min(1.0, step / max(1, self.total - 1 - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2


class InverseSquareRoot(Schedule):
    """Inverse square-root decay, (1 + n / timescale)^(-1/2) after n steps, then linear to 0 over the last `cooldown`.

    https://arxiv.org/abs/2106.04560, section 3.5: a run of any length may be cooled down, or continued.
    """

    def __init__(self, total: int, *, warmup: int | float = 0, timescale: int = 10_000, cooldown: int = 0) -> None:
        super().__init__(total, warmup=warmup)
        if timescale < 1 or not 0 <= cooldown <= total - self.warmup:
            raise ValueError(
                "timescale must be at least 1 and cooldown fit in the steps after the warm-up, "
                f"got timescale={timescale}, cooldown={cooldown} of {total - self.warmup}"
            )
        self.timescale, self.cooldown = timescale, cooldown

    def decay(self, step: int) -> float:
        rest = max(0, self.total - 1 - self.warmup - step)
        cooldown = rest / self.cooldown if rest < self.cooldown else 1.0
        return (1 + step / self.timescale) ** -0.5 * cooldown
