"""How weights start: one function for each published recipe, applied to a whole model."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from vitkit.nn.embed import PatchEmbed
from vitkit.nn.encoder import Encoder
from vitkit.nn.pool import Attend
from vitkit.nn.positions import RelativeBias
from vitkit.nn.residual import Residual
from vitkit.nn.tables import Learned

Draw = Callable[[Tensor], Tensor]
normal = partial(nn.init.trunc_normal_, std=0.02)


@torch.no_grad()
def vit(model: nn.Module) -> None:
    """Truncated normal 0.02 (BERT, DeiT), LeCun normal patches (https://arxiv.org/abs/2010.11929, JAX code), and the
    last matrix of each of an encoder's n residual branches divided by sqrt(n) (GPT-2, section 2.3; n = 2L)."""

    def patches(weight: Tensor) -> Tensor:
        return nn.init.trunc_normal_(weight, std=weight[0].numel() ** -0.5)

    draw(model, normal, patches, normal)
    for encoder in (module for module in model.modules() if isinstance(module, Encoder)):
        branches = [module.f for module in encoder.modules() if isinstance(module, Residual)]
        for branch in branches:
            last = [linear for linear in branch.modules() if isinstance(linear, nn.Linear)][-1]
            last.weight /= len(branches) ** 0.5


@torch.no_grad()
def mae(model: nn.Module) -> None:
    """Xavier uniform, the fused qkv and the flattened patches included; tokens normal 0.02 (MAE's code).

    Also for narrow models: at a width of 64, 0.02 is too little (in 400 steps on digits 72 % where this gave 93 %).
    """

    def flat(weight: Tensor) -> Tensor:
        return nn.init.xavier_uniform_(weight.flatten(1))

    draw(model, flat, flat, partial(nn.init.normal_, std=0.02))


def draw(model: nn.Module, linear: Draw, patches: Draw, tokens: Draw) -> None:
    """Matrices, patch kernels, and what is added to or stands among the tokens, by these rules; biases are zero."""
    for module in model.modules():
        match module:
            case nn.Linear() | nn.Conv2d():
                (linear if isinstance(module, nn.Linear) else patches)(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case PatchEmbed():
                tokens(module.prefix)
            case Learned() | RelativeBias():
                tokens(module.weight)
            case Attend():
                tokens(module.query)
