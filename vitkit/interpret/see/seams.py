"""Where attention can be seen and changed from outside, in a model that stays as it is and keeps its fused kernels.

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

from vitkit.interpret.see.axes import axes_of
from vitkit.interpret.see.calls import Call, Seen, Softmax, four
from vitkit.interpret.see.layers import NotCaptured, refusals, softmax_cores
from vitkit.interpret.see.multihead import merged, of_multihead
from vitkit.interpret.see.nesting import HIDDEN, hidden
from vitkit.nn import Attention, masks

# Gets the name of a layer and what it is about to do; may give back, in place of what the layer had, what its heads
# gather (of a Call) or their weights (of a Softmax).
Visit = Callable[[str, Seen], Tensor | None]
Refuse = Callable[[str, NotCaptured], None]
SOFTMAXES = {torch.softmax, torch.special.softmax, Tensor.softmax, F.softmax}


def raised(name: str, error: NotCaptured) -> None:
    raise NotCaptured(f"{name} cannot be captured: {error}")


@contextmanager
def watching(layers: Mapping[str, nn.Module], visit: Visit, refuse: Refuse = raised) -> Iterator[None]:
    """While this is open, what these modules attend to in this thread is shown to `visit`.

    Nothing of the model is changed but for hooks, which are gone afterwards. Compiled parts run uncompiled meanwhile;
    nn.TransformerEncoder leaves its fast path, as for any hook, and rounds differently there.

    Args: refuse: gets what cannot be shown of what runs. Raises: NotCaptured for a layer whose class is none to show.
    """
    if wrong := refusals(layers):
        others = [name for name in layers if name not in wrong]
        raise NotCaptured(
            f"{len(wrong)} of {len(layers)} layers cannot be captured: "
            f"{'; '.join(f'{name}: {reason}' for name, reason in [*wrong.items()][:4])}"
            f"{'; ...' if len(wrong) > 4 else ''}{'; name others, such as ' * bool(others)}{', '.join(others[:4])}"
        )
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and importing it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        around = HIDDEN.get()

        def visit_hidden(name: str, seen: Seen) -> Tensor | None:
            if isinstance(seen, Call):  # a softmax of the layer's own has been changed already
                seen = hidden(seen, around.get(layers[name]))
            return visit(name, seen)

        for name, module in layers.items():
            for undo in hooked(name, module, visit_hidden, refuse):
                stack.callback(undo)
        yield


def hooked(name: str, module: nn.Module, visit: Visit, refuse: Refuse) -> list[Callable[[], None]]:
    """Hooks that show one layer; gives what undoes them. A module may be shared with threads that did not ask."""
    thread = threading.get_ident()

    def here(hook: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: hook(*arguments) if threading.get_ident() == thread else None

    if isinstance(module, Attention):
        return hook_cores(name, module, visit, refuse, here)
    if isinstance(module, nn.MultiheadAttention):
        return [module.register_forward_hook(here(multihead(name, visit, refuse)), with_kwargs=True).remove]
    modes: list[Interception] = []

    def enter(*_: object) -> None:
        modes.append(Interception(name, module, visit, refuse))
        modes[-1].__enter__()

    def leave(*_: object) -> None:
        if modes:  # another hook may have failed before `enter`
            modes.pop().__exit__(None, None, None)

    return [
        leave,  # after Ctrl-C, of which no hook is told
        module.register_forward_pre_hook(here(enter)).remove,
        module.register_forward_hook(here(leave), always_call=True).remove,
    ]


def hook_cores(
    name: str, module: Attention, visit: Visit, refuse: Refuse, here: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> list[Callable[[], None]]:
    """Hooks on the softmax cores of vitkit's Attention. A core may be shared: it is shown while this layer runs."""
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
            several = (
                f"its core {type(module.core).__name__} takes several softmaxes in a pass: none has all of the weights"
            )
            return refuse(name, NotCaptured(several))
        return visit(name, of_core(output, *arguments, **options))

    hooks = [core.register_forward_hook(here(show), with_kwargs=True) for core in softmax_cores(module.core)]
    hooks += [module.register_forward_pre_hook(here(enter))]
    hooks += [module.register_forward_hook(here(leave), always_call=True)]
    return [hook.remove for hook in hooks]


def of_core(
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
    """Return the call of a softmax core; with `causal` it counts from the lower right."""
    if causal:
        mask = masks.join(mask, masks.lower_right(q.shape[2], k.shape[2], q.device))
    return Call(q, k, v, mask, bias, scale, output)


def multihead(name: str, visit: Visit, refuse: Refuse) -> Callable[..., Any]:
    def whole(module: nn.MultiheadAttention, arguments: Any, options: Any, output: Any) -> Any:
        try:
            call = of_multihead(module, *arguments, **options)
        except NotCaptured as error:
            return refuse(name, error)
        gathered = visit(name, call)
        return None if gathered is None else (merged(module, gathered, output[0]), output[1])

    return whole


class Interception(TorchFunctionMode):
    """Sees the kernel or the softmax that a module calls, whose result stands unless the visitor gives another."""

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
        with torch._C.DisableTorchFunction():  # an outer watcher is not shown what the visitor does
            try:
                axes = axes_of(self.module, result.ndim)
                seen = of_kernel(axes.to, result, *args, **(kwargs or {})) if kernel else Softmax(axes.to(result))
            except NotCaptured as error:
                self.refuse(self.name, error)
                return result
            changed = self.visit(self.name, seen)
            return result if changed is None else axes.back(changed, result)


def of_kernel(
    to: Callable[[Tensor], Tensor],
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
        added = to(attn_mask) if attn_mask.ndim == query.ndim else four(attn_mask)
        mask, bias = (masks.join(mask, added), None) if added.dtype == torch.bool else (mask, added)
    q, k, v = to(query), to(key), to(value)
    return Call(q, k, v, None if mask is None else four(mask), bias, scale, to(output))
