"""What heads gather on average over data, and heads that gather just that.

B batch, C channels, H heads, T tokens, Dh head width.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.measure.moments import Moments
from vitkit.interpret.measure.statistics import Run, once
from vitkit.interpret.see.calls import Seen
from vitkit.interpret.see.edits import Head, gathering
from vitkit.interpret.see.layers import chosen


class Means:
    """An edit: each head gathers its mean over data, token by token. Args: found: (H, T, Dh) by the names of layers."""

    def __init__(self, found: Mapping[str, Float[Tensor, "_ _ _"]]) -> None:
        self.found = found

    def __call__(self, seen: Seen, head: Head) -> Tensor:
        call = gathering(seen, head)
        mean = self.found[head.layer][head.head].to(call.v)
        if len(mean) != call.shape[2]:
            raise ValueError(f"means must be of {call.shape[2]} tokens in {head.layer}, got {len(mean)}")
        return mean.expand(call.shape[0], -1, -1)


@torch.no_grad()
def head_means(model: nn.Module, run: Run, batches: Iterable[Float[Tensor, "_ C H W"]], layers: Sequence[str]) -> Means:
    """What each head gathers on average over pictures. Raises: NotCaptured where only the softmax is seen."""
    found = {name: Moments() for name in chosen(model, layers)}

    def add(name: str, seen: Seen) -> None:
        found[name].add(gathering(seen, Head(name, 0)).gathered())

    with once(model, [*found], add) as start:
        for images in batches:
            start()
            run(images)
    if not all(moments.count for moments in found.values()):
        raise ValueError("batches must hold pictures, got none")
    return Means({name: moments.mean for name, moments in found.items()})
