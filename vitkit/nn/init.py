"""How weights start: one function for each published recipe, applied to a whole model."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from vitkit.nn.attention import Attention
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


@torch.no_grad()
def clip(model: nn.Module) -> None:
    """CLIP's text tower (https://arxiv.org/abs/2103.00020, code): normal, of deviation 0.02 for tokens and 0.01 for
    positions; for an encoder of width D and depth L D^-1/2 what enters attention, (2 D L)^-1/2 what leaves a branch,
    (2 D)^-1/2 what enters the MLP. All other matrices D^-1/2, D what they read."""

    def entering(weight: Tensor) -> Tensor:
        return nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    draw(model, entering, entering, partial(nn.init.normal_, std=0.01))
    for encoder in (module for module in model.modules() if isinstance(module, Encoder)):
        for branch in (module.f for module in encoder.modules() if isinstance(module, Residual)):
            linears = [linear for linear in branch.modules() if isinstance(linear, nn.Linear)]
            nn.init.normal_(linears[-1].weight, std=(2 * encoder.dim * encoder.depth) ** -0.5)
            if not isinstance(branch, Attention):
                nn.init.normal_(linears[0].weight, std=(2 * encoder.dim) ** -0.5)


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
            case nn.Embedding():
                normal(module.weight)
            case Learned() | RelativeBias():
                tokens(module.weight)
            case Attend():
                tokens(module.query)
