"""What a model answers about one picture when each of its heads is removed, one at a time.

B heads at a time, C channels, H W pixels, K outputs, T tokens, Dh head width.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall, Call
from vitkit.interpret.see.edits import watch_all

AT_ONCE = 16  # copies of the picture in a batch, each without another head


@torch.inference_mode()
def without_each_head(
    model: nn.Module,
    run: Callable[[Tensor], Tensor],
    image: Float[Tensor, "1 C H W"],
    layer: str,
    heads: int,
) -> Float[Tensor, "heads K"]:
    """Row by row the output without that head of the layer: it gathers zeros, the bias of the projection stays."""
    found = []
    for start in range(0, heads, AT_ONCE):
        some = range(start, min(start + AT_ONCE, heads))
        with watch_all({layer: model.get_submodule(layer)}, Missing(some)):
            found.append(run(image.expand(len(some), *image.shape[1:])).float().cpu())
    return torch.cat(found)


class Missing:
    """Picture i of a batch is without head heads[i]."""

    def __init__(self, heads: Sequence[int]) -> None:
        self.heads = heads

    def __call__(self, _: str, call: AttentionCall) -> Tensor:
        after = (call.compute_output() if isinstance(call, Call) else call.probabilities).clone()
        for picture, head in enumerate(self.heads):
            after[picture, head] = 0
        return after
