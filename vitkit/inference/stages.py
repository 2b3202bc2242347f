"""The stages of a network: output shape, parameters, FLOPs, and the activations for one real image.

D width, L depth.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitkit.models import SIZES
from vitkit.nn import Block, NoPositions, PatchEmbed, TokenEmbed

DEAD = 1e-12  # variance; tokens and position tables start at 4e-4


GROWTH = 100.0  # of the standard deviation between stages; a trained ViT-S/14 (DINOv2's shape) reaches 15


class Stage(NamedTuple):
    """The output of a module. `parameters` and `flops` are those that no earlier stage has counted."""

    name: str
    shape: tuple[int, ...]
    parameters: int
    flops: int
    mean: float
    variance: float


def measure_stages(model: nn.Module, *inputs: Tensor) -> list[Stage]:
    """Return the stages in the order in which they run, for images and then for texts.

    The model is not changed. FLOPs are multiply-adds times 2, in matrix products and convolutions.
    """
    stages: list[Stage] = []
    counted: set[int] = set()
    # PyTorch counts its fused attention on every device but the CPU.
    fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: count_attention_flops}
    counter = FlopCounterMode(display=False, custom_mapping=fused)

    def record(name: str, module: nn.Module, arguments: object, output: Any) -> None:
        fresh = {id(parameter): parameter.numel() for parameter in module.parameters() if id(parameter) not in counted}
        if has_stages(module) and not fresh:
            return
        counted.update(fresh)
        x = (output if isinstance(output, Tensor) else output[0]).double()
        flops = counter.get_total_flops() - sum(stage.flops for stage in stages)
        mean, variance = x.mean().item(), x.var(correction=0).item()
        stages.append(Stage(name, tuple(x.shape), sum(fresh.values()), flops, mean, variance))

    hooks = [module.register_forward_hook(partial(record, name)) for name, module in list_modules("", model)]
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learned:
            parameter.requires_grad_(False)  # the counter needs the gradient of views, as of a learned query
        with torch.no_grad(), torch.random.fork_rng(devices=[]), counter:
            torch.default_generator.manual_seed(0)  # an MAE draws its hidden patches
            model(*inputs)
    finally:
        for parameter in learned:
            parameter.requires_grad_()
        for hook in hooks:
            hook.remove()
    return stages


def list_modules(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield name or type(module).__name__, module
    if has_stages(module):
        for child, part in module.named_children():
            if not isinstance(part, nn.Identity | NoPositions):  # an empty slot
                yield from list_modules(f"{name}.{child}".lstrip("."), part)


def has_stages(module: nn.Module) -> bool:
    """Return whether a module's parts are stages: those of embeddings, and of modules that contain blocks."""
    parts = Block | PatchEmbed | TokenEmbed
    return not isinstance(module, Block) and any(isinstance(part, parts) for part in module.modules())


def count_attention_flops(q: torch.Size, k: torch.Size, *others: object, **options: object) -> int:
    """Return the FLOPs of q k', and of weights times v: B H T S Dh multiply-adds each."""
    return 4 * math.prod(q) * k[-2]


def count_parameters(size: str, patch: int) -> int:
    """Return the parameters of a ViT for 1000 classes and 224 pixels by formula: 12 L D^2 and small terms."""
    dim, depth, _, ratio = SIZES[size]
    hidden = int(dim * ratio)  # 4 D, but in so400m
    block = 4 * dim**2 + 2 * dim * hidden + 9 * dim + hidden  # qkv, out, up, down with biases; two norms
    rows = (3 * patch**2 + 1) + (224 // patch) ** 2 + 1 + 2  # patches and bias, table, CLS, final norm
    return depth * block + rows * dim + (dim + 1) * 1000


def list_anomalies(stages: list[Stage]) -> list[str]:
    """Return a line for each stage that is not finite, constant, or much larger than the first of its shape."""
    lines: list[str] = []
    first: dict[tuple[int, ...], Stage] = {}
    for name, shape, _, _, mean, variance in stages:
        if not math.isfinite(mean + variance):
            return [*lines, f"{name} is not finite, nor are the later stages"]
        start = first.setdefault(shape, Stage(name, shape, 0, 0, mean, variance))
        if variance < DEAD:
            lines.append(f"{name} is constant: the same number everywhere")
        elif variance > GROWTH**2 * start.variance > 0:
            factor = (variance / start.variance) ** 0.5
            lines.append(f"{name} has {factor:,.0f} times the standard deviation of {start.name}")
    return lines


def format_stages(stages: list[Stage]) -> str:
    total = Stage("total", (), sum(stage.parameters for stage in stages), sum(stage.flops for stage in stages), 0, 0)
    rows = [("stage", "shape", "parameters", "MFLOPs", "mean", "variance")]
    for name, shape, parameters, flops, mean, variance in [*stages, total]:
        sizes = " x ".join(map(str, shape))
        rows.append((name, sizes, f"{parameters:,}", f"{flops / 1e6:,.1f}", f"{mean:.2g}", f"{variance:.2g}"))
    rows[-1] = (*rows[-1][:4], "", "")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{row[0]:{widths[0]}}  " + "  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
