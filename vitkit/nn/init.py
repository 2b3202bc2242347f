"""How weights start: one function for each published recipe, applied to a whole model."""

from functools import partial

import torch
from torch import Tensor, nn

from vitkit.nn.embed import PatchEmbed
from vitkit.nn.encoder import Encoder
from vitkit.nn.pool import Attend
from vitkit.nn.positions import RelativeBias
from vitkit.nn.residual import Residual
from vitkit.nn.tables import Learned

normal = partial(nn.init.trunc_normal_, std=0.02)


@torch.no_grad()
def vit(model: nn.Module) -> None:
    """Truncated normal 0.02 (BERT, DeiT), LeCun normal patches (https://arxiv.org/abs/2010.11929, JAX code), and the
    last matrix of each of an encoder's n residual branches divided by sqrt(n) (GPT-2, section 2.3; n = 2L)."""
    for module in model.modules():
        match module:
            case nn.Linear():
                normal(module.weight)
            case nn.Conv2d():
                nn.init.trunc_normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        forget_bias(module)
    for tensor in tokens_and_tables(model):
        normal(tensor)
    for encoder in model.modules():
        if isinstance(encoder, Encoder):
            branches = [module.f for module in encoder.modules() if isinstance(module, Residual)]
            for branch in branches:
                last = [linear for linear in branch.modules() if isinstance(linear, nn.Linear)][-1]
                last.weight /= len(branches) ** 0.5


@torch.no_grad()
def mae(model: nn.Module) -> None:
    """Xavier uniform, the fused qkv and the flattened patches included; tokens normal 0.02 (MAE's code)."""
    for module in model.modules():
        match module:
            case nn.Linear() | nn.Conv2d():
                nn.init.xavier_uniform_(module.weight.flatten(1))
        forget_bias(module)
    for tensor in tokens_and_tables(model):
        nn.init.normal_(tensor, std=0.02)


def forget_bias(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
        nn.init.zeros_(module.bias)


def tokens_and_tables(model: nn.Module) -> list[Tensor]:
    """Parameters that are added to or stand among the tokens."""
    found: list[Tensor] = []
    for module in model.modules():
        match module:
            case PatchEmbed():
                found.append(module.prefix)
            case Learned() | RelativeBias():
                found.append(module.weight)
            case Attend():
                found.append(module.query)
    return found
