"""Outputs of a model for one image with each head removed, one at a time.

B heads at a time, C channels, H W pixels, K outputs, T tokens, Dh head width.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall, Call
from vitkit.interpret.see.edits import watch_all

BATCH = 16  # copies of the image, each without another head


@torch.inference_mode()
def remove_heads(
    model: nn.Module,
    run: Callable[[Tensor], Tensor],
    image: Float[Tensor, "1 C H W"],
    layer: str,
    heads: int,
) -> Float[Tensor, "heads K"]:
    """Return the outputs, row h without head h of the layer: its output is zero, the projection's bias stays."""
    outputs = []
    for start in range(0, heads, BATCH):
        batch = range(start, min(start + BATCH, heads))
        with watch_all({layer: model.get_submodule(layer)}, HeadRemoval(batch)):
            outputs.append(run(image.expand(len(batch), *image.shape[1:])).float().cpu())
    return torch.cat(outputs)


class HeadRemoval:
    """An edit that sets head heads[i] of image i of the batch to zero."""

    def __init__(self, heads: Sequence[int]) -> None:
        self.heads = heads

    def __call__(self, _: str, call: AttentionCall) -> Tensor:
        gathered = (call.compute_output() if isinstance(call, Call) else call.probabilities).clone()
        for image, head in enumerate(self.heads):
            gathered[image, head] = 0
        return gathered
