"""Where attention can be seen and changed from outside, in a model that stays as it is and keeps its fused kernels.

B batch, T queries, S keys, H heads, K key/value heads, Dh head width, D and M widths.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitkit.interpret.layers import NotCaptured
from vitkit.nn import Attention, masks
from vitkit.nn.attention import softmax

ROWS = 1e-3  # how far a row of weights may be from 1: bfloat16 keeps 8 bits

# Classes whose softmax is no attention of tokens to tokens, or not all of it.
REFUSED = {
    "XCA": "attends from channels to channels, not from tokens to tokens",
    "ChannelAttention": "attends from channels to channels, not from tokens to tokens",
    "OutlookAttention": "weighs a neighbourhood without comparing tokens",
    "GPSA": "blends two softmaxes, one of places, by a gate",
    "LiteMLA": "is linear: there are no weights",
    "DiffAttention": "subtracts one softmax from another: rows do not sum to 1",
}


@dataclass(frozen=True)
class Call:
    """What a layer is about to gather: softmax(q k' * scale + bias) v over the keys that the mask lets be seen.

    `output` is what the layer's own kernel made of it, None where that cannot be seen from outside.
    """

    q: Float[Tensor, "B H T Dh"]
    k: Float[Tensor, "B K S Dh"]
    v: Float[Tensor, "B K S Dh"]
    mask: Bool[Tensor, "#B #H #T #S"] | None
    bias: Float[Tensor, "#B #H #T #S"] | None
    scale: float | None
    output: Float[Tensor, "B H T Dh"] | None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, T, S)."""
        return (*self.q.shape[:3], self.k.shape[2])

    def weights(
        self, heads: Sequence[int] | None = None, queries: Sequence[int] | None = None
    ) -> Float[Tensor, "B Hs Q S"]:
        """After the softmax and before dropout, of these heads and query tokens, in float32 at least.

        Raises: NotCaptured where a row does not sum to 1.
        """
        groups = self.q.shape[1] // self.k.shape[1]
        owners = None if groups == 1 and heads is None else [h // groups for h in heads or range(self.q.shape[1])]
        exact = torch.promote_types(self.q.dtype, torch.float32)
        q, k = part(part(self.q, 1, heads), 2, queries).to(exact), part(self.k, 1, owners).to(exact)
        mask, bias = (None if one is None else part(part(one, 1, heads), 2, queries) for one in (self.mask, self.bias))
        scores = (q * (self.q.shape[-1] ** -0.5 if self.scale is None else self.scale)) @ k.mT
        weights = softmax(scores if bias is None else scores + bias.to(exact), mask)
        return checked(weights, blind=mask is not None or bias is not None)

    def gathered(self, weights: Float[Tensor, "B H T S"] | None = None) -> Float[Tensor, "B H T Dh"]:
        """By other weights than its own, if there are any."""
        if weights is None and self.output is not None:
            return self.output
        v = self.v.repeat_interleave(self.q.shape[1] // self.v.shape[1], dim=1)
        return (self.weights() if weights is None else weights).to(v.dtype) @ v


@dataclass(frozen=True)
class Softmax:
    """A layer that takes the softmax by itself: its weights are seen, what it gathers by them is not."""

    own: Float[Tensor, "B H T S"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, T, S)."""
        B, H, T, S = self.own.shape
        return B, H, T, S

    def weights(
        self, heads: Sequence[int] | None = None, queries: Sequence[int] | None = None
    ) -> Float[Tensor, "B Hs Q S"]:
        """As those of a Call."""
        kept = part(part(self.own, 1, heads), 2, queries)
        return checked(kept.to(torch.promote_types(kept.dtype, torch.float32)), blind=False)


Seen = Call | Softmax
# Gets the name of a layer and what it is about to do; may give back, in place of what the layer had, what its heads
# gather (of a Call) or their weights (of a Softmax).
Visit = Callable[[str, Seen], Tensor | None]


def part(x: Tensor, axis: int, places: Sequence[int] | None) -> Tensor:
    """These places of an axis, all if None; an axis of length 1 is meant for each."""
    if places is None or x.shape[axis] == 1:
        return x
    return x.index_select(axis, torch.tensor([*places], device=x.device))


def checked(weights: Float[Tensor, "B Hs Q S"], blind: bool) -> Float[Tensor, "B Hs Q S"]:
    """Args: blind: whether a row may have nothing to look at, and is 0. Raises: NotCaptured."""
    sums = weights.detach().sum(-1)
    right = (sums - 1).abs() < ROWS
    if not (right | (sums == 0) if blind else right).all():
        worst = sums.flatten()[(sums - 1).abs().argmax()].item()
        raise NotCaptured(f"rows of attention must sum to 1, got {worst:g}: the layer computes something else")
    return weights


@contextmanager
def watching(layers: Mapping[str, nn.Module], visit: Visit) -> Iterator[None]:
    """While this is open, what these modules attend to in this thread is shown to `visit`.

    Nothing of the model is changed but for hooks, which are gone afterwards. Compiled parts run uncompiled meanwhile.
    """
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and importing it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in layers.items():
            for handle in hooked(name, module, visit):
                stack.callback(handle.remove)
        yield


def hooked(name: str, module: nn.Module, visit: Visit) -> list[Any]:
    """Hooks that show one layer."""
    if reason := REFUSED.get(type(module).__name__):
        raise NotCaptured(f"{name} cannot be captured: {type(module).__name__} {reason}")
    thread = threading.get_ident()

    def here(hook: Callable[..., Any]) -> Callable[..., Any]:
        """A module may be shared with threads that did not ask."""
        return lambda *arguments: hook(*arguments) if threading.get_ident() == thread else None

    if isinstance(module, Attention):

        def core(_: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor | None:
            q, k, v, mask, bias, causal, scale = arguments[:7]
            if causal:
                mask = masks.join(mask, masks.lower_right(q.shape[2], k.shape[2], q.device))
            return visit(name, Call(q, k, v, mask, bias, scale, output))

        return [module.core.register_forward_hook(here(core))]
    if isinstance(module, nn.MultiheadAttention):

        def multihead(_: nn.Module, arguments: Any, options: Any, output: Any) -> Any:
            call = of_multihead(module, *arguments, **options)
            gathered = visit(name, call)
            return None if gathered is None else (merged(module, gathered, output[0]), output[1])

        return [module.register_forward_hook(here(multihead), with_kwargs=True)]
    modes: list[Interception] = []

    def enter(*_: object) -> None:
        modes.append(Interception(name, visit))
        modes[-1].__enter__()

    def leave(*_: object) -> None:
        if modes:  # another hook may have failed before `enter`
            modes.pop().__exit__(None, None, None)

    return [
        module.register_forward_pre_hook(here(enter)),
        module.register_forward_hook(here(leave), always_call=True),
    ]


SOFTMAXES = {torch.softmax, Tensor.softmax, F.softmax}


class Interception(TorchFunctionMode):
    """Sees the kernel or the softmax that a module calls, whose result stands unless the visitor gives another."""

    def __init__(self, name: str, visit: Visit) -> None:
        super().__init__()
        self.name, self.visit = name, visit

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            return self.shown(of_kernel(result, *args, **(kwargs or {})), result)
        if func in SOFTMAXES and isinstance(result, Tensor) and result.ndim >= 3:
            if result.ndim != 4:
                raise NotCaptured(f"{self.name} has a softmax of {result.ndim} axes: which are heads is not known")
            return self.shown(Softmax(result), result)
        return result

    def shown(self, seen: Seen, result: Tensor) -> Tensor:
        if isinstance(seen, Call) and seen.q.ndim != 4:
            raise NotCaptured(f"{self.name} attends on {seen.q.ndim} axes: which are heads is not known")
        changed = self.visit(self.name, seen)
        return result if changed is None else changed


def of_kernel(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """What PyTorch's kernel was asked; with `is_causal` it counts from the upper left."""
    T, S = query.shape[-2], key.shape[-2]
    mask = torch.ones(T, S, dtype=torch.bool, device=query.device).tril() if is_causal else None
    bias = None
    if attn_mask is not None:
        added = four(attn_mask)
        mask, bias = (masks.join(mask, added), None) if added.dtype == torch.bool else (mask, added)
    return Call(query, key, value, None if mask is None else four(mask), bias, scale, output)


def four(x: Tensor) -> Tensor:
    """With axes in front, up to (B, H, T, S)."""
    return x.view(*(1,) * (4 - x.ndim), *x.shape)


def of_multihead(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Call:
    """From the module's own weights: what it does inside cannot be seen."""
    if module.bias_k is not None or module.add_zero_attn:
        raise NotCaptured("nn.MultiheadAttention with add_bias_kv or add_zero_attn has keys that are no tokens")
    inputs = [batched(module, x) for x in (query, key, value)]
    if module.in_proj_weight is None:
        matrices = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        matrices = [*module.in_proj_weight.chunk(3)]
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    q, k, v = (
        F.linear(x, matrix, bias).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for x, matrix, bias in zip(inputs, matrices, biases, strict=True)
    )
    hidden, bias = None, None
    padding = None if key_padding_mask is None else key_padding_mask.view(-1, 1, 1, k.shape[2])
    if attn_mask is not None:
        attn_mask = attn_mask.unflatten(0, (-1, module.num_heads)) if attn_mask.ndim == 3 else four(attn_mask)
    for given in (padding, attn_mask):
        if given is not None and given.dtype == torch.bool:  # True may not look
            hidden = given if hidden is None else hidden | given
        elif given is not None:
            bias = given if bias is None else bias + given
    return Call(q, k, v, None if hidden is None else ~hidden, bias, None, None)


def batched(module: nn.MultiheadAttention, x: Tensor) -> Float[Tensor, "B T D"]:
    return x[None] if x.ndim == 2 else x if module.batch_first else x.transpose(0, 1)


def merged(module: nn.MultiheadAttention, gathered: Float[Tensor, "B H T Dh"], like: Tensor) -> Tensor:
    """What the module makes of what its heads gathered, in the axes of its own output."""
    x = module.out_proj(gathered.transpose(1, 2).flatten(2).to(like.dtype))
    return x[0] if like.ndim == 2 else x if module.batch_first else x.transpose(0, 1)
