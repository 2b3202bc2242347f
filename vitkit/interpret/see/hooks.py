"""Hooks that show attention calls, and change them, in a model that keeps its code and its fused kernels.

B batch, T queries, S keys, H heads, Dh head width.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitkit.interpret.see.axes import find_head_axes
from vitkit.interpret.see.calls import AttentionCall, Call, Softmax, expand_to_4d
from vitkit.interpret.see.layers import CaptureError, explain_unsupported, find_softmax_cores
from vitkit.interpret.see.multihead import compute_multihead_call, project_heads
from vitkit.interpret.see.nesting import HIDDEN, mask_call_keys
from vitkit.nn import Attention, masks

# Gets the name of a layer and its call; may return a replacement: the output of the heads for a Call, their weights
# for a Softmax.
Visit = Callable[[str, AttentionCall], Tensor | None]
Refuse = Callable[[str, CaptureError], None]
SOFTMAXES = {torch.softmax, torch.special.softmax, Tensor.softmax, F.softmax}


def raise_error(name: str, error: CaptureError) -> None:
    raise CaptureError(f"{name} cannot be captured: {error}")


@contextmanager
def watch_layers(layers: Mapping[str, nn.Module], visit: Visit, refuse: Refuse = raise_error) -> Iterator[None]:
    """Show `visit` the attention calls of these layers in this thread while the context is open.

    The model is not changed but for hooks, which are removed afterwards. Compiled parts run uncompiled meanwhile;
    nn.TransformerEncoder leaves its fast path, as for any hook, and rounds differently there.

    Args: refuse: gets calls that cannot be shown. Raises: CaptureError for a layer of an unsupported class.
    """
    if unsupported := explain_unsupported(layers):
        reasons = [f"{name}: {reason}" for name, reason in unsupported.items()]
        others = [name for name in layers if name not in unsupported]
        raise CaptureError(
            f"{len(unsupported)} of {len(layers)} layers cannot be captured: "
            f"{'; '.join(reasons[:4])}{'; ...' if len(reasons) > 4 else ''}"
            f"{'; name others, such as ' * bool(others)}{', '.join(others[:4])}"
        )
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and importing it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        hidden = HIDDEN.get()

        def visit_masked(name: str, call: AttentionCall) -> Tensor | None:
            if isinstance(call, Call):  # a softmax of the layer's own has been changed already
                call = mask_call_keys(call, hidden.get(layers[name]))
            return visit(name, call)

        for name, module in layers.items():
            for remove in hook_layer(name, module, visit_masked, refuse):
                stack.callback(remove)
        yield


def hook_layer(name: str, module: nn.Module, visit: Visit, refuse: Refuse) -> list[Callable[[], None]]:
    """Register hooks on one layer and return functions that remove them; other threads that share it are ignored."""
    thread = threading.get_ident()

    def limit_to_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: hook(*arguments) if threading.get_ident() == thread else None

    if isinstance(module, Attention):
        return hook_cores(name, module, visit, refuse, limit_to_thread)
    if isinstance(module, nn.MultiheadAttention):
        hook = limit_to_thread(make_multihead_hook(name, visit, refuse))
        return [module.register_forward_hook(hook, with_kwargs=True).remove]
    modes: list[Interception] = []

    def enter(*_: object) -> None:
        modes.append(Interception(name, module, visit, refuse))
        modes[-1].__enter__()

    def leave(*_: object) -> None:
        if modes:  # another hook may have failed before `enter`
            modes.pop().__exit__(None, None, None)

    return [
        leave,  # after Ctrl-C, for which no hook runs
        module.register_forward_pre_hook(limit_to_thread(enter)).remove,
        module.register_forward_hook(limit_to_thread(leave), always_call=True).remove,
    ]


def hook_cores(
    name: str,
    module: Attention,
    visit: Visit,
    refuse: Refuse,
    limit_to_thread: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> list[Callable[[], None]]:
    """Register hooks on the softmax cores of vitkit's Attention; a shared core is shown while this layer runs."""
    running, calls = False, 0

    def enter(*_: object) -> None:
        nonlocal running, calls
        running, calls = True, 0

    def leave(*_: object) -> None:
        nonlocal running
        running = False

    def show(core: nn.Module, arguments: Any, options: Any, output: Tensor) -> Tensor | None:
        nonlocal calls
        if not running:
            return None
        calls += 1
        if calls > 1:
            kind = type(module.core).__name__
            reason = f"its core {kind} computes several softmaxes in a pass: none has all of the weights"
            return refuse(name, CaptureError(reason))
        return visit(name, make_core_call(output, *arguments, **options))

    cores = find_softmax_cores(module.core)
    hooks = [core.register_forward_hook(limit_to_thread(show), with_kwargs=True) for core in cores]
    hooks += [module.register_forward_pre_hook(limit_to_thread(enter))]
    hooks += [module.register_forward_hook(limit_to_thread(leave), always_call=True)]
    return [hook.remove for hook in hooks]


def make_core_call(
    output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Call:
    """Return the call of a softmax core; its `causal` mask is aligned to the lower right."""
    if causal:
        mask = masks.join(mask, masks.lower_right(q.shape[2], k.shape[2], q.device))
    return Call(q, k, v, mask, bias, scale, output)


def make_multihead_hook(name: str, visit: Visit, refuse: Refuse) -> Callable[..., Any]:
    def hook(module: nn.MultiheadAttention, arguments: Any, options: Any, output: Any) -> Any:
        try:
            call = compute_multihead_call(module, *arguments, **options)
        except CaptureError as error:
            return refuse(name, error)
        heads = visit(name, call)
        return None if heads is None else (project_heads(module, heads, output[0]), output[1])

    return hook


class Interception(TorchFunctionMode):
    """Shows the kernel or softmax that a module calls; the visitor may replace its result."""

    def __init__(self, name: str, module: nn.Module, visit: Visit, refuse: Refuse) -> None:
        super().__init__()
        self.name, self.module, self.visit, self.refuse = name, module, visit, refuse

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        kernel = func is F.scaled_dot_product_attention
        if not kernel and not (func in SOFTMAXES and isinstance(result, Tensor) and result.ndim >= 3):
            return result
        with torch._C.DisableTorchFunction():  # an outer mode must not see what the visitor computes
            try:
                axes = find_head_axes(self.module, result.ndim)
                if kernel:
                    call = make_kernel_call(axes.to_heads, result, *args, **(kwargs or {}))
                else:
                    call = Softmax(axes.to_heads(result))
            except CaptureError as error:
                self.refuse(self.name, error)
                return result
            replacement = self.visit(self.name, call)
            return result if replacement is None else axes.from_heads(replacement, result)


def make_kernel_call(
    to_heads: Callable[[Tensor], Tensor],
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
    """Return the call of PyTorch's kernel; its `is_causal` mask is aligned to the upper left."""
    T, S = query.shape[-2], key.shape[-2]
    mask = torch.ones(T, S, dtype=torch.bool, device=query.device).tril() if is_causal else None
    bias = None
    if attn_mask is not None:
        added = to_heads(attn_mask) if attn_mask.ndim == query.ndim else expand_to_4d(attn_mask)
        mask, bias = (masks.join(mask, added), None) if added.dtype == torch.bool else (mask, added)
    q, k, v = to_heads(query), to_heads(key), to_heads(value)
    return Call(q, k, v, None if mask is None else expand_to_4d(mask), bias, scale, to_heads(output))
