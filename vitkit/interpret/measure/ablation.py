"""Head ablation: the change of a model's output without each of its heads, beside random baselines.

B batch, C channels, H heads, K classes, or the width of an embedding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitkit.interpret.measure.chance import RandomWeights, draw_columns, edit_columns
from vitkit.interpret.measure.effects import Effect, measure_class_effect
from vitkit.interpret.measure.moments import Moments, Summary
from vitkit.interpret.measure.statistics import Run, watch_batches
from vitkit.interpret.see.calls import AttentionCall, Call
from vitkit.interpret.see.edits import Head, Replacement, edit, zero
from vitkit.interpret.see.layers import select_layers

DRAWS = 4  # sets of random columns for each layer
REMOVED, RANDOM_MAP, RANDOM_COLUMNS = "removed", "random_map", "random_columns"


@dataclass(frozen=True)
class Ablation:
    """Changes of the output over `count` images, after minus before: a Summary for each layer, by effect.

    - removed: (H,), one head is removed.
    - random_map: (H,), the rows of one head are drawn uniformly from all rows of sum 1. An effect that stays does not
      depend on where the head attends.
    - random_columns: (DRAWS,), random columns of the layer's head outputs are removed, as many as a head has, in the
      same way. Empty for a layer whose softmax alone can be seen.
    """

    layers: tuple[str, ...]
    count: int
    removed: dict[str, tuple[Summary, ...]]
    random_map: dict[str, tuple[Summary, ...]]
    random_columns: dict[str, tuple[Summary, ...]]

    @property
    def main_effect(self) -> str:
        """The effect to report first: "probability" for classes, "turn" for embeddings."""
        return "probability" if "probability" in self.removed else "turn"

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON, None for unknown ones."""
        kinds = {REMOVED: self.removed, RANDOM_MAP: self.random_map, RANDOM_COLUMNS: self.random_columns}
        return {
            "layers": [*self.layers],
            "pictures": self.count,
            **{
                kind: {name: [summary.to_dict() for summary in summaries] for name, summaries in effects.items()}
                for kind, effects in kinds.items()
            },
        }


@torch.no_grad()
def ablate_heads(
    model: nn.Module,
    run: Run,
    batches: Iterable[tuple[Float[Tensor, "_ C H W"], Int64[Tensor, " _"]]],
    layers: Sequence[str],
    how: Replacement = zero,
    *,
    effect: Effect = measure_class_effect,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Ablation:
    """Ablate every head of these layers in turn: about 1 + 2 H + DRAWS passes over a batch for each layer.

    Args:
        model: in evaluation mode.
        run: returns outputs (B, K).
        batches: images and their labels, -1 for none: then the predicted class is used.
        how: replacement of a head's output: `zero`, or the mean over data of `compute_head_means`; the model has never
            seen zeros in training.
        effect: compares outputs before and after: `measure_class_effect`, `measure_multilabel_effect` or
            `measure_embedding_effect`.
        seed: of the random baselines.
        tick: is called after each pass.

    Raises: ValueError without images, and for outputs that are not finite.
    """
    heads, widths = {name: 0 for name in select_layers(model, layers)}, dict[str, int]()
    tally, random_weights, count = Tally(), RandomWeights(seed), 0

    def record_shape(name: str, call: AttentionCall) -> None:
        heads[name] = call.shape[1]
        widths.update({name: call.v.shape[-1]} if isinstance(call, Call) else {})

    for images, labels in batches:
        with watch_batches(model, [*heads], record_shape) as start:
            start()
            before = to_float64(run(images))
        tick()
        if not before.isfinite().all():
            raise ValueError("run must return finite outputs, got others")
        count += len(images)
        for name, H in heads.items():
            columns = draw_columns(H, widths[name], DRAWS, seed) if name in widths else []
            kinds = {
                REMOVED: [edit(model, Head(name, head, how)) for head in range(H)],
                RANDOM_MAP: [edit(model, Head(name, head, random_weights)) for head in range(H)],
                RANDOM_COLUMNS: [edit_columns(model, name, how, mask) for mask in columns],
            }
            for kind, edits in kinds.items():
                tally.add(kind, name, [effect(before, after, labels) for after in run_edits(run, images, edits, tick)])
    if not count:
        raise ValueError("batches must hold images, got none")
    kinds = REMOVED, RANDOM_MAP, RANDOM_COLUMNS
    return Ablation(tuple(heads), count, *(tally.summarise(kind, [*heads]) for kind in kinds))


def run_edits(
    run: Run, images: Tensor, edits: Sequence[AbstractContextManager[None]], tick: Callable[[], None]
) -> Iterator[Float[Tensor, "B K"]]:
    """Yield the outputs of the model under each edit."""
    for context in edits:
        with context:
            outputs = to_float64(run(images))
        tick()
        yield outputs


def to_float64(outputs: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Convert outputs: probabilities near 1 are 0.004 apart in bfloat16, and small effects would be rounded away."""
    return outputs.cpu().double()


class Tally:
    """Moments of every effect, by kind of ablation and layer."""

    def __init__(self) -> None:
        self.moments: dict[tuple[str, str], dict[str, Moments]] = {}

    def add(self, kind: str, layer: str, effects: Sequence[Mapping[str, Tensor]]) -> None:
        """Add the effects (B,) of each ablation."""
        for name in effects[0] if effects else ():
            moments = self.moments.setdefault((kind, name), {}).setdefault(layer, Moments())
            moments.add(torch.stack([effect[name] for effect in effects], dim=1))

    def summarise(self, kind: str, layers: Sequence[str]) -> dict[str, tuple[Summary, ...]]:
        """Return a Summary for each layer, by effect; an empty one for a layer without this kind."""
        empty = Summary(*[torch.zeros(0)] * 4)
        return {
            name: tuple(by_layer[layer].summarise() if layer in by_layer else empty for layer in layers)
            for (other, name), by_layer in self.moments.items()
            if other == kind
        }
