"""Random baselines for head ablation: edits of equal size that are drawn at random.

B batch, H heads, T queries, S keys, Dh head width.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from vitkit.interpret.see.calls import AttentionCall
from vitkit.interpret.see.edits import (
    Head,
    Replacement,
    apply_weights,
    find_visible_keys,
    require_output,
    watch_all,
)


class RandomWeights:
    """An edit that draws a head's rows uniformly from all rows of sum 1 over its visible keys.

    Image i gets the same rows in every head, however images are batched.
    """

    def __init__(self, seed: int) -> None:
        self.generators = defaultdict[tuple[str, int], torch.Generator](lambda: torch.Generator().manual_seed(seed))

    def __call__(self, call: AttentionCall, head: Head) -> Tensor:
        visible, generator = find_visible_keys(call, head), self.generators[head.layer, head.head]
        weights = [torch.empty(mask.shape).exponential_(generator=generator) for mask in visible]
        return apply_weights(call, head, torch.stack(weights).to(visible.device) * visible)


@contextmanager
def edit_columns(model: nn.Module, layer: str, how: Replacement, columns: Bool[Tensor, "H 1 Dh"]) -> Iterator[None]:
    """Replace columns of a layer's head outputs while the context is open, as `how` replaces whole heads."""

    def visit(name: str, call: AttentionCall) -> Tensor:
        call = require_output(call, Head(name, 0))
        replacement = torch.stack([how(call, Head(name, head)) for head in range(len(columns))], dim=1)
        output = call.compute_output()
        return torch.where(columns.to(output.device), replacement.to(output), output)

    with watch_all({layer: model.get_submodule(layer)}, visit):
        yield


def draw_columns(heads: int, width: int, draws: int, seed: int) -> list[Bool[Tensor, "{heads} 1 {width}"]]:
    """Draw sets of `width` columns, as many as a head has, from those of all heads."""
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for _ in range(draws):
        columns = torch.zeros(heads * width, dtype=torch.bool)
        columns[torch.randperm(heads * width, generator=generator)[:width]] = True
        masks.append(columns.view(heads, 1, width))
    return masks
