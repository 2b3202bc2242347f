"""Functions with their own backward pass, which store fewer tensors for it than autograd would. D width."""

from typing import Any, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

Kind = TypeVar("Kind", bound=nn.Module)


def is_plain(module: nn.Module, kind: type[Kind]) -> TypeGuard[Kind]:
    """Return whether `module` is of class `kind`, no subclass, and has no hooks, so that a function may replace it.

    Return False with hooks (its own or global ones), with a replaced `forward`, in forward-mode differentiation, under
    the transforms of torch.func, and in compilation, since the compiler chooses which tensors to store.
    """
    if torch.compiler.is_compiling() or type(module) is not kind or "forward" in vars(module):
        return False
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return not (any(hooks) or _has_any_global_hook() or transformed)


def gelu_linear(
    hidden: Float[Tensor, "*B hidden"], linear: nn.Linear, approximate: str = "none"
) -> Float[Tensor, "*B D"]:
    """Return linear(gelu(hidden)). Only `hidden` is stored; the backward pass recomputes the activation."""
    weight = linear.weight
    if torch.is_autocast_enabled(hidden.device.type):  # the backward pass runs outside of autocast
        weight = weight.to(hidden.dtype)
    return GELULinear.apply(hidden, weight, linear.bias, approximate)


class GELULinear(torch.autograd.Function):
    """linear(gelu(hidden)), the activation recomputed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.approximate = approximate
        return F.linear(F.gelu(hidden, approximate=approximate), weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        rows = grads[0].reshape(-1, grads[0].shape[-1])
        d_hidden = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            d_hidden = torch.ops.aten.gelu_backward(grads[0] @ weight, hidden, approximate=ctx.approximate)
        if ctx.needs_input_grad[1]:
            d_weight = rows.mT @ F.gelu(hidden, approximate=ctx.approximate).reshape(-1, hidden.shape[-1])
        if ctx.needs_input_grad[2]:
            d_bias = rows.sum(0)
        return d_hidden, d_weight, d_bias, None
