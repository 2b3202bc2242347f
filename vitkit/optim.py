"""What an optimiser is given: parameter groups, and a learning rate that follows the optimiser's steps."""

import math

from torch import nn


def groups(model: nn.Module, lr: float, weight_decay: float) -> list[dict]:
    """Two groups, `decayed` and `plain`: only the matrices that multiply (linear and convolution weights) decay.

    Biases, norms, layer scales, prefix and mask tokens, position tables and everything else that is added stay plain.
    """
    matrices = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    }
    named = {"decayed": (weight_decay, []), "plain": (0.0, [])}
    for parameter in model.parameters():
        if parameter.requires_grad:
            named["decayed" if id(parameter) in matrices else "plain"][1].append(parameter)
    return [
        {"name": name, "params": parameters, "lr": lr, "weight_decay": decay}
        for name, (decay, parameters) in named.items()
        if parameters
    ]


class WarmupCosine:
    """A factor for the learning rate: up linearly over `warmup` steps, then along a cosine down to `floor` at the last.

    SGDR without restarts, https://arxiv.org/abs/1608.03983, equation 5.
    """

    def __init__(self, total: int, *, warmup: int = 0, floor: float = 0.0) -> None:
        if not 0 <= warmup < total:
            raise ValueError(f"warmup must be at least 0 and below the {total} steps of the run, got warmup={warmup}")
        self.total, self.warmup, self.floor = total, warmup, floor

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        progress = min(1.0, (step - self.warmup) / max(1, self.total - 1 - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2
