"""The steps of one encoder layer, recorded in a forward pass of the model.

B images, C channels, H heads, T tokens, D width, Dh head width, F width of the MLP.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall, Call
from vitkit.interpret.see.hooks import watch_layers
from vitkit.models.parts import ImageTower, get_layers
from vitkit.nn import MLP, Attention, PostNorm, PreNorm, SwiGLU
from vitkit.nn.encoder import Block
from vitkit.nn.residual import Residual

BINS = 24
Record = Callable[[str, str, Tensor], None]  # a step, the letters of its axes, its values


class Step(NamedTuple):
    """Statistics of the values of a step; `bins` are counts in bins of equal width from `low` to `high`."""

    step: str
    letters: tuple[str, ...]
    shape: tuple[int, ...]
    mean: float
    variance: float
    low: float
    high: float
    bins: tuple[int, ...]


def record_layer(model: ImageTower, images: Float[Tensor, "B C H W"], layer: int = 0) -> list[Step]:
    """Return the steps in order. Raises: ValueError for a layer that is not there, or whose steps are not known."""
    blocks = get_layers(model).blocks
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"layer must be from {-len(blocks)} to {len(blocks) - 1}, got layer={layer}")
    if model.training:
        raise ValueError("model must be in evaluation mode, where nothing is drawn at random; call model.eval()")
    block = blocks[layer]
    residuals = (PreNorm, PostNorm)  # the order of their steps is known
    if not isinstance(block, Block) or not isinstance(block.attn.f, Attention) or block.cross is not None:
        raise ValueError(f"layer must be self-attention of vitkit and an MLP, got layer={layer} of another kind")
    if not (isinstance(block.attn, residuals) and isinstance(block.mlp, residuals)):
        raise ValueError(f"layer must have PreNorm or PostNorm residuals, got {type(block.attn).__name__}")
    steps: list[Step] = []

    def record(step: str, letters: str, values: Tensor) -> None:
        steps.append(summarize_step(step, tuple(letters.split()), values))

    with torch.inference_mode(), hook_block(block, record):
        model.features(images)
    return steps


def summarize_step(step: str, letters: tuple[str, ...], values: Tensor) -> Step:
    exact = values.detach().double()
    if not exact.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others in the step {step}")
    low, high = exact.min().item(), exact.max().item()
    counts = torch.histc(exact.flatten(), BINS, low, high) if low < high else torch.full((BINS,), exact.numel())
    bins = tuple(int(count) for count in counts.tolist())
    return Step(step, letters, tuple(exact.shape), exact.mean().item(), exact.var(correction=0).item(), low, high, bins)


@contextmanager
def hook_block(block: Block, record: Record) -> Iterator[None]:
    """Record what the block computes while the context is open; its hooks are removed at the end."""

    def record_input(module: nn.Module, step: str, letters: str = "B T D") -> None:
        hook = module.register_forward_pre_hook(lambda _, arguments: record(step, letters, arguments[0]))
        stack.callback(hook.remove)

    def record_output(module: nn.Module, step: str, letters: str = "B T D", factor: Tensor | None = None) -> None:
        def record_call(_: nn.Module, arguments: Any, output: Tensor) -> None:
            record(step, letters, output if factor is None else output * factor)

        stack.callback(module.register_forward_hook(record_call).remove)

    attention = cast(Attention, block.attn.f)
    with ExitStack() as stack:
        record_input(block, "input")
        hook_residual(block.attn, "", record_input, record_output)
        stack.enter_context(watch_layers({"attention": attention}, build_attention_visitor(record)))
        record_output(attention.heads, "heads", "B H T Dh")
        record_output(attention.out, "out")
        hook_residual(block.mlp, "mlp_", record_input, record_output)
        match block.mlp.f:
            case MLP() as mlp:
                record_output(mlp.up, "up", "B T F")
                record_output(mlp.act, "act", "B T F")
                record_output(mlp.down, "down")
            case SwiGLU() as mlp:
                record_output(mlp.gate_up, "gate_up", "B T 2F")
                record_input(mlp.down, "gated", "B T F")
                record_output(mlp.down, "down")
            case mlp:
                record_output(mlp, "branch")
        yield


def hook_residual(
    residual: Residual, prefix: str, record_input: Callable[..., None], record_output: Callable[..., None]
) -> None:
    """Record the norm, the layer scale if there is one, and the sum."""
    if isinstance(residual, PostNorm):
        record_input(residual.norm, f"{prefix}sum")
        record_output(residual.norm, f"{prefix}post_norm")
    else:
        record_output(residual.norm, f"{prefix}norm")
        record_output(residual, f"{prefix}sum")
    if residual.scale is not None:
        record_output(residual.dropout, f"{prefix}scale", factor=residual.scale)


def build_attention_visitor(record: Record) -> Callable[[str, AttentionCall], None]:
    """Return a visitor that records queries, keys, values, products, scores and weights of an attention call."""

    def visit(name: str, call: AttentionCall) -> None:
        if not isinstance(call, Call):
            return
        groups = call.q.shape[1] // call.k.shape[1]
        key_letters = "B H T Dh" if groups == 1 else "B K T Dh"
        products = call.q @ call.k.repeat_interleave(groups, dim=1).mT
        scores = products * (call.q.shape[-1] ** -0.5 if call.scale is None else call.scale)
        record("q", "B H T Dh", call.q)
        record("k", key_letters, call.k)
        record("v", key_letters, call.v)
        record("products", "B H T T", products)
        record("scores", "B H T T", scores if call.bias is None else scores + call.bias)
        record("weights", "B H T T", call.compute_weights())

    return visit
