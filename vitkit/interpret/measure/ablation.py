"""What a model loses with each of its heads, beside what it loses by chance.

B batch, C channels, H heads, K classes, or the width of a vector.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitkit.interpret.measure.chance import Scattered, random_columns, without_columns
from vitkit.interpret.measure.effects import Effect, one_class
from vitkit.interpret.measure.moments import Moments, Summary
from vitkit.interpret.measure.statistics import Run, once
from vitkit.interpret.see.calls import Call, Seen
from vitkit.interpret.see.edits import Head, How, edit, zero
from vitkit.interpret.see.layers import chosen

DRAWS = 4  # random columns of a layer
REMOVED, MAP, COLUMNS = "removed", "random_map", "random_columns"


@dataclass(frozen=True)
class Ablation:
    """Changes of the model's answer over `count` pictures, after minus before: by name a Summary for each layer.

    - removed: (H,), without one head.
    - random_map: (H,), a head looks anywhere: its rows are drawn evenly from all rows of sum 1. What this leaves as it
      is does not depend on where the head looks.
    - random_columns: (DRAWS,), as many random columns of what the layer's heads gather are removed as a head has, in
      the same way. Empty for a layer of which only the softmax is seen.
    """

    layers: tuple[str, ...]
    count: int
    removed: dict[str, tuple[Summary, ...]]
    random_map: dict[str, tuple[Summary, ...]]
    random_columns: dict[str, tuple[Summary, ...]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is unknown is None."""
        kinds = {REMOVED: self.removed, MAP: self.random_map, COLUMNS: self.random_columns}
        return {
            "layers": [*self.layers],
            "pictures": self.count,
            **{
                kind: {name: [one.to_dict() for one in found] for name, found in measures.items()}
                for kind, measures in kinds.items()
            },
        }


@torch.no_grad()
def ablate_heads(
    model: nn.Module,
    run: Run,
    batches: Iterable[tuple[Float[Tensor, "_ C H W"], Int64[Tensor, " _"]]],
    layers: Sequence[str],
    how: How = zero,
    *,
    effect: Effect = one_class,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Ablation:
    """Every head of these layers by itself: a batch runs 1 + 2 H + DRAWS times for each layer, about.

    Args:
        model: in evaluation mode.
        run: (B, K) answers.
        batches: images and their labels, -1 where there is none: then the class counts that is predicted.
        how: what removing is: `zero`, or the mean over data as `head_means` gives it; zeros are what a model never saw.
        effect: what is measured of answers before and after: `one_class`, `several_classes` or `vectors`.
        seed: of the random baselines.
        tick: is called after each pass.

    Raises: ValueError without pictures, and for answers that are not finite.
    """
    heads, widths = {name: 0 for name in chosen(model, layers)}, dict[str, int]()
    tally, scattered, count = Tally(), Scattered(seed), 0

    def note(name: str, seen: Seen) -> None:
        heads[name] = seen.shape[1]
        widths.update({name: seen.v.shape[-1]} if isinstance(seen, Call) else {})

    for images, labels in batches:
        with once(model, [*heads], note) as start:
            start()
            before = exact(run(images))
        tick()
        if not before.isfinite().all():
            raise ValueError("run must give finite answers, got others")
        count += len(images)
        for name, H in heads.items():
            columns = random_columns(H, widths[name], DRAWS, seed) if name in widths else []
            kinds = {
                REMOVED: [edit(model, Head(name, head, how)) for head in range(H)],
                MAP: [edit(model, Head(name, head, scattered)) for head in range(H)],
                COLUMNS: [without_columns(model, name, how, drawn) for drawn in columns],
            }
            for kind, changes in kinds.items():
                tally.add(kind, name, [effect(before, after, labels) for after in answers(run, images, changes, tick)])
    if not count:
        raise ValueError("batches must hold pictures, got none")
    return Ablation(tuple(heads), count, *(tally.of(kind, [*heads]) for kind in (REMOVED, MAP, COLUMNS)))


def answers(
    run: Run, images: Tensor, contexts: Sequence[AbstractContextManager[None]], tick: Callable[[], None]
) -> Iterator[Float[Tensor, "B K"]]:
    """Within each of these edits."""
    for context in contexts:
        with context:
            answer = exact(run(images))
        tick()
        yield answer


def exact(answers: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Probabilities near 1 in bfloat16 are 0.004 apart: in float64 small effects are not rounded away."""
    return answers.cpu().double()


class Tally:
    """Moments of every measure, kind of change and layer."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], dict[str, Moments]] = {}

    def add(self, kind: str, layer: str, effects: Sequence[Mapping[str, Tensor]]) -> None:
        """Args: effects: of each change, numbers (B,)."""
        for name in effects[0] if effects else ():
            moments = self.found.setdefault((kind, name), {}).setdefault(layer, Moments())
            moments.add(torch.stack([one[name] for one in effects], dim=1))

    def of(self, kind: str, layers: Sequence[str]) -> dict[str, tuple[Summary, ...]]:
        none = Summary(*[torch.zeros(0)] * 4)
        return {
            name: tuple(by_layer[layer].summary() if layer in by_layer else none for layer in layers)
            for (other, name), by_layer in self.found.items()
            if other == kind
        }
