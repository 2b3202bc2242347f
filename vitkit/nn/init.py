"""Weight initialisation: one function for each published recipe, applied to a whole model in place."""

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

Initializer = Callable[[Tensor], Tensor]
normal = partial(nn.init.trunc_normal_, std=0.02)


@torch.no_grad()
def vit(model: nn.Module) -> None:
    """Initialise as BERT and DeiT: truncated normal with standard deviation 0.02.

    The projection of patches is LeCun normal (https://arxiv.org/abs/2010.11929, JAX code). The last matrix of each of
    the n residual branches of an encoder is divided by sqrt(n) (GPT-2, section 2.3; n = 2L).

    Raises: ValueError for a residual whose module is no Branch, so that its last matrix is unknown.
    """

    def lecun_normal(weight: Tensor) -> Tensor:
        return nn.init.trunc_normal_(weight, std=weight[0].numel() ** -0.5)

    draw_weights(model, normal, lecun_normal, normal)
    for encoder in (module for module in model.modules() if isinstance(module, Encoder)):
        branches = list_branches(encoder)
        for branch in branches:
            branch.last.weight /= len(branches) ** 0.5


@torch.no_grad()
def mae(model: nn.Module) -> None:
    """Initialise as MAE's code: Xavier uniform, also for the joint qkv matrix and the projection of flattened patches.

    Tokens are normal with standard deviation 0.02. The recipe suits narrow models too: a width of 64 needs weights of a
    deviation above 0.02 (accuracy after 400 steps on digits: 72 % with 0.02, 93 % with this recipe).
    """

    def xavier_uniform(weight: Tensor) -> Tensor:
        return nn.init.xavier_uniform_(weight.flatten(1))

    draw_weights(model, xavier_uniform, xavier_uniform, partial(nn.init.normal_, std=0.02))


@torch.no_grad()
def clip(model: nn.Module) -> None:
    """Initialise as CLIP's text tower (https://arxiv.org/abs/2103.00020, code): normal.

    The standard deviation is 0.02 for tokens and 0.01 for positions. In an encoder of width D and depth L it is
    (2 D L)^-1/2 for the last matrix of each branch and (2 D)^-1/2 for the first one of an MLP. For any other matrix it
    is (width of its input)^-1/2.

    Raises: ValueError for a residual whose module is no Branch, so that its last matrix is unknown.
    """

    def normal_by_width(weight: Tensor) -> Tensor:
        return nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    draw_weights(model, normal_by_width, normal_by_width, partial(nn.init.normal_, std=0.01))
    for encoder in (module for module in model.modules() if isinstance(module, Encoder)):
        for branch in list_branches(encoder):
            nn.init.normal_(branch.last.weight, std=(2 * encoder.dim * encoder.depth) ** -0.5)
            if isinstance(branch, FeedForward):
                nn.init.normal_(branch.first.weight, std=(2 * encoder.dim) ** -0.5)


def list_branches(encoder: Encoder) -> list[Branch]:
    """Return the branch of each residual, in order. A module that wraps a branch counts as that branch.

    Raises: ValueError for a residual without a branch, or with several.
    """
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
    """Return the outermost branches in a module."""
    if isinstance(module, Branch):
        return [module]
    return [branch for child in module.children() for branch in unwrap_branch(child)]


def draw_weights(model: nn.Module, linear: Initializer, patches: Initializer, tokens: Initializer) -> None:
    """Initialise weights by one function for each kind: `tokens` also serves position tables and queries.

    Biases become zero, embeddings of ids normal.
    """
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
