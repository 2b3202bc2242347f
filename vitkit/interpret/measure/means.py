"""Mean outputs of heads over data, and their use as an edit (mean ablation).

B batch, C channels, H heads, T tokens, Dh head width.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.measure.moments import Moments
from vitkit.interpret.measure.statistics import Run, watch_batches
from vitkit.interpret.see.calls import AttentionCall
from vitkit.interpret.see.edits import Head, require_output
from vitkit.interpret.see.layers import select_layers


class HeadMeans:
    """An edit that replaces each head's output by its mean over data, token by token.

    Args: means: (H, T, Dh) by layer name.
    """

    def __init__(self, means: Mapping[str, Float[Tensor, "_ _ _"]]) -> None:
        self.means = means

    def __call__(self, call: AttentionCall, head: Head) -> Tensor:
        call = require_output(call, head)
        mean = self.means[head.layer][head.head].to(call.v)
        if len(mean) != call.shape[2]:
            raise ValueError(f"means must be of {call.shape[2]} tokens in {head.layer}, got {len(mean)}")
        return mean.expand(call.shape[0], -1, -1)


@torch.no_grad()
def compute_head_means(
    model: nn.Module, run: Run, batches: Iterable[Float[Tensor, "_ C H W"]], layers: Sequence[str]
) -> HeadMeans:
    """Compute the mean output of each head over images. Raises: CaptureError where only the softmax can be seen."""
    moments = {name: Moments() for name in select_layers(model, layers)}

    def add(name: str, call: AttentionCall) -> None:
        moments[name].add(require_output(call, Head(name, 0)).compute_output())

    with watch_batches(model, [*moments], add) as start:
        for images in batches:
            start()
            run(images)
    if not all(layer.count for layer in moments.values()):
        raise ValueError("batches must hold images, got none")
    return HeadMeans({name: layer.mean for name, layer in moments.items()})
