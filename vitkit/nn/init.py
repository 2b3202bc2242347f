"""How weights start: one function for each published recipe, applied to a whole model."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from vitkit.nn.embed import PatchEmbed
from vitkit.nn.encoder import Encoder
from vitkit.nn.mlp import FeedForward
from vitkit.nn.pool import Attend
from vitkit.nn.positions import RelativeBias
from vitkit.nn.residual import Branch, Residual
from vitkit.nn.tables import Learned

Draw = Callable[[Tensor], Tensor]
normal = partial(nn.init.trunc_normal_, std=0.02)


@torch.no_grad()
def vit(model: nn.Module) -> None:
    """Truncated normal 0.02 (BERT, DeiT), LeCun normal patches (https://arxiv.org/abs/2010.11929, JAX code), and the
    last matrix of each of an encoder's n residual branches divided by sqrt(n) (GPT-2, section 2.3; n = 2L).

    Raises: ValueError for a branch that does not name its last matrix.
    """

    def patches(weight: Tensor) -> Tensor:
        return nn.init.trunc_normal_(weight, std=weight[0].numel() ** -0.5)

    draw(model, normal, patches, normal)
    for encoder in (module for module in model.modules() if isinstance(module, Encoder)):
        branches = list_branches(encoder)
        for branch in branches:
            branch.last.weight /= len(branches) ** 0.5


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
    (2 D)^-1/2 what enters the MLP. All other matrices D^-1/2, D what they read.

    Raises: ValueError for a branch that does not name its last matrix.
    """

    def entering(weight: Tensor) -> Tensor:
        return nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    draw(model, entering, entering, partial(nn.init.normal_, std=0.01))
    for encoder in (module for module in model.modules() if isinstance(module, Encoder)):
        for branch in list_branches(encoder):
            nn.init.normal_(branch.last.weight, std=(2 * encoder.dim * encoder.depth) ** -0.5)
            if isinstance(branch, FeedForward):
                nn.init.normal_(branch.first.weight, std=(2 * encoder.dim) ** -0.5)


def list_branches(encoder: Encoder) -> list[Branch]:
    """Return what each residual adds to x, in order. A module that wraps a branch stands for that branch."""
    modules = [module.output for module in encoder.modules() if isinstance(module, Residual)]
    branches = [unwrap_branch(module) for module in modules]
    unknown = {type(module).__name__ for module, inner in zip(modules, branches, strict=True) if len(inner) != 1}
    if unknown:
        raise ValueError(
            f"residuals must add one Branch, which names its last matrix, or wrap it, got {', '.join(unknown)}; "
            "derive it from vitkit.nn.residual.Branch, or give the model another init"
        )
    return [branch for inner in branches for branch in inner]


def unwrap_branch(module: nn.Module) -> list[Branch]:
    """The outermost branches in a module."""
    if isinstance(module, Branch):
        return [module]
    return [branch for part in module.children() for branch in unwrap_branch(part)]


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
