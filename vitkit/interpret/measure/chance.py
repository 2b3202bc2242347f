"""What a change of a head is measured against: changes of equal size that chance draws.

B batch, H heads, T queries, S keys, Dh head width.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from vitkit.interpret.see.calls import Seen
from vitkit.interpret.see.edits import Head, How, by_weights, complete, gathering, visible


class Scattered:
    """An edit: the head's rows are drawn evenly from all rows of sum 1 over the keys that it may see.

    Every head gets the same ones for the first picture, for the second, and so on, whatever the batches.
    """

    def __init__(self, seed: int) -> None:
        self.generators = defaultdict[tuple[str, int], torch.Generator](lambda: torch.Generator().manual_seed(seed))

    def __call__(self, seen: Seen, head: Head) -> Tensor:
        allowed, generator = visible(seen, head), self.generators[head.layer, head.head]
        drawn = [torch.empty(one.shape).exponential_(generator=generator) for one in allowed]
        return by_weights(seen, head, torch.stack(drawn).to(allowed.device) * allowed)


@contextmanager
def without_columns(model: nn.Module, layer: str, how: How, columns: Bool[Tensor, "H 1 Dh"]) -> Iterator[None]:
    """What runs inside has these columns of what the heads of a layer gather changed, as `how` changes whole heads."""

    def visit(name: str, seen: Seen) -> Tensor:
        call = gathering(seen, Head(name, 0))
        changed = torch.stack([how(call, Head(name, head)) for head in range(len(columns))], dim=1)
        now = call.gathered()
        return torch.where(columns.to(now.device), changed.to(now), now)

    with complete({layer: model.get_submodule(layer)}, visit):
        yield


def random_columns(heads: int, width: int, draws: int, seed: int) -> list[Bool[Tensor, "{heads} 1 {width}"]]:
    """So many sets of as many columns of all heads as one head has."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(draws):
        columns = torch.zeros(heads * width, dtype=torch.bool)
        columns[torch.randperm(heads * width, generator=generator)[:width]] = True
        found.append(columns.view(heads, 1, width))
    return found
