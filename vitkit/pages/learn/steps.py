"""What one encoder layer computes, step by step, in a forward pass of the model itself.

B pictures, C channels, H heads, T tokens, D width, Dh head width, F width of the MLP.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall, Call
from vitkit.interpret.see.hooks import watch_layers
from vitkit.models.parts import ImageTower, layers
from vitkit.nn import MLP, Attention, PostNorm, PreNorm, SwiGLU
from vitkit.nn.encoder import Block
from vitkit.nn.residual import Residual

BINS = 24
Record = Callable[[str, str, Tensor], None]  # a step, the letters of its axes, its numbers


class Step(NamedTuple):
    """Numbers that a layer makes: `variance` of all of them, `bins` counts of equal width from `low` to `high`."""

    step: str
    letters: tuple[str, ...]
    shape: tuple[int, ...]
    mean: float
    variance: float
    low: float
    high: float
    bins: tuple[int, ...]


def layer_steps(model: ImageTower, images: Float[Tensor, "B C H W"], layer: int = 0) -> list[Step]:
    """In the order in which they happen. Raises: ValueError for a layer that is not there, or is of another kind."""
    blocks = layers(model).blocks
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"layer must be from {-len(blocks)} to {len(blocks) - 1}, got layer={layer}")
    if model.training:
        raise ValueError("model must be in evaluation mode, where nothing is drawn at random; call model.eval()")
    block = blocks[layer]
    kinds = (PreNorm, PostNorm)  # whose order of steps is known
    if not isinstance(block, Block) or not isinstance(block.attn.f, Attention) or block.cross is not None:
        raise ValueError(f"layer must be self-attention of vitkit and an MLP, got layer={layer} of another kind")
    if not (isinstance(block.attn, kinds) and isinstance(block.mlp, kinds)):
        raise ValueError(f"layer must have PreNorm or PostNorm residuals, got {type(block.attn).__name__}")
    steps: list[Step] = []

    def record(step: str, letters: str, numbers: Tensor) -> None:
        steps.append(measured(step, tuple(letters.split()), numbers))

    with torch.inference_mode(), recording(block, record):
        model.features(images)
    return steps


def measured(step: str, letters: tuple[str, ...], numbers: Tensor) -> Step:
    exact = numbers.detach().double()
    if not exact.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others in the step {step}")
    low, high = exact.min().item(), exact.max().item()
    counts = torch.histc(exact.flatten(), BINS, low, high) if low < high else torch.full((BINS,), exact.numel())
    bins = tuple(int(count) for count in counts.tolist())
    return Step(step, letters, tuple(exact.shape), exact.mean().item(), exact.var(correction=0).item(), low, high, bins)


@contextmanager
def recording(block: Block, record: Record) -> Iterator[None]:
    """While this is open, what the block computes is recorded; its hooks are gone afterwards."""

    def before(module: nn.Module, step: str, letters: str = "B T D") -> None:
        hook = module.register_forward_pre_hook(lambda _, arguments: record(step, letters, arguments[0]))
        stack.callback(hook.remove)

    def after(module: nn.Module, step: str, letters: str = "B T D", factor: Tensor | None = None) -> None:
        def told(_: nn.Module, arguments: Any, output: Tensor) -> None:
            record(step, letters, output if factor is None else output * factor)

        stack.callback(module.register_forward_hook(told).remove)

    attention = cast(Attention, block.attn.f)
    with ExitStack() as stack:
        before(block, "input")
        residual(block.attn, "", before, after)
        stack.enter_context(watch_layers({"attention": attention}, attending(record)))
        after(attention.heads, "heads", "B H T Dh")
        after(attention.out, "out")
        residual(block.mlp, "mlp_", before, after)
        match block.mlp.f:
            case MLP() as mlp:
                after(mlp.up, "up", "B T F")
                after(mlp.act, "act", "B T F")
                after(mlp.down, "down")
            case SwiGLU() as mlp:
                after(mlp.gate_up, "gate_up", "B T 2F")
                before(mlp.down, "gated", "B T F")
                after(mlp.down, "down")
            case mlp:
                after(mlp, "branch")
        yield


def residual(whole: Residual, prefix: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    """Where the norm stands, the layer scale if there is one, and the sum."""
    if isinstance(whole, PostNorm):
        before(whole.norm, f"{prefix}sum")
        after(whole.norm, f"{prefix}post_norm")
    else:
        after(whole.norm, f"{prefix}norm")
        after(whole, f"{prefix}sum")
    if whole.scale is not None:
        after(whole.dropout, f"{prefix}scale", factor=whole.scale)


def attending(record: Record) -> Callable[[str, AttentionCall], None]:
    """What a layer compares: queries, keys and values, products, scores, weights."""

    def visit(name: str, call: AttentionCall) -> None:
        if not isinstance(call, Call):
            return
        groups = call.q.shape[1] // call.k.shape[1]
        held = "B H T Dh" if groups == 1 else "B K T Dh"
        products = call.q @ call.k.repeat_interleave(groups, dim=1).mT
        scores = products * (call.q.shape[-1] ** -0.5 if call.scale is None else call.scale)
        record("q", "B H T Dh", call.q)
        record("k", held, call.k)
        record("v", held, call.v)
        record("products", "B H T T", products)
        record("scores", "B H T T", scores if call.bias is None else scores + call.bias)
        record("weights", "B H T T", call.compute_weights())

    return visit
