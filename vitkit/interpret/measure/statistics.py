"""Attention statistics of heads over a data set.

B batch, C channels, H heads, T tokens = P prefix + N patches, h w the grid.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.measure.moments import Moments, Summary, replace_nan
from vitkit.interpret.see.calls import AttentionCall, Call
from vitkit.interpret.see.hooks import watch_layers
from vitkit.interpret.see.layers import CaptureError, select_layers

LARGEST = 64_000_000  # weights at a time, 256 MB: a batch with more is measured image by image
UNITS = {"distance": "patches", "entropy": "nats"}  # all others are shares of attention, from 0 to 1
Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Statistics:
    """Attention statistics over `count` images.

    `measures` has a Summary of (H,) for each layer, by name; the value of an image is the mean over its queries:

    - distance: mean attention distance from a patch to the others, Euclidean, in patches; prefix keys are dropped and
      the rest of a row is normalised again (https://arxiv.org/abs/2010.11929, appendix D.7).
    - entropy: of a row over all keys, in nats.
    - diagonal: attention of a token to itself.
    - sink: attention to the key that gets most in an image.
    - cls, registers, distillation, patches: attention to these tokens, for those that the model has.

    `similarity` of heads is the cosine of their flattened maps, (H, H) for each layer, a mean over images.
    `skipped` names the layers that could not be measured, with the reason.
    """

    layers: tuple[str, ...]
    count: int
    measures: dict[str, tuple[Summary, ...]]
    similarity: tuple[Float[Tensor, "_ _"], ...]
    layout: Layout
    skipped: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON, None for unknown ones."""
        return {
            "layers": [*self.layers],
            "pictures": self.count,
            "grid": [*self.layout.grid],
            "prefix": [*self.layout.prefix],
            "units": {name: UNITS.get(name, "share") for name in self.measures},
            "measures": {
                name: [summary.to_dict() for summary in summaries] for name, summaries in self.measures.items()
            },
            "similarity": [[replace_nan(row) for row in matrix] for matrix in self.similarity],
            "skipped": [*self.skipped],
        }


@torch.no_grad()
def statistics(
    model: nn.Module,
    run: Run,
    batches: Iterable[Float[Tensor, "_ C H W"]],
    layers: Sequence[str],
    layout: Layout,
) -> Statistics:
    """Compute attention statistics over images; of a layer's weights only sums are stored.

    Args:
        model: in evaluation mode.
        run: runs the model on a batch; its result is not used.
        layers: names, or patterns as in `layers.select_layers`; a layer over other tokens than the layout's, such as
            an attention pool, is skipped.

    Raises: ValueError without images, and if no layer can be measured.
    """
    moments, skipped = {name: dict[str, Moments]() for name in select_layers(model, layers)}, dict[str, str]()
    groups, distances = group_tokens(layout), compute_patch_distances(layout)

    def measure(name: str, call: AttentionCall) -> None:
        if call.shape[2:] != (layout.num_tokens, layout.num_tokens):
            skipped[name] = f"{name} attends from {call.shape[2]} to {call.shape[3]} tokens, not to {layout.num_tokens}"
            return
        for portion in split_batch(call):
            weights = portion.compute_weights()
            for key, values in measure_weights(weights, groups, len(layout.prefix), distances.to(weights)).items():
                moments[name].setdefault(key, Moments()).add(values)

    with watch_batches(model, [*moments], measure) as start:
        for images in batches:
            start()
            run(images)
    complete = {name: layer for name, layer in moments.items() if name not in skipped}
    if not complete or not all(complete.values()):
        reason = "; ".join([*skipped.values()][:3]) or "batches must hold images, got none"
        raise ValueError(f"statistics must have a layer and images to measure: {reason}")
    first = next(iter(complete.values()))
    measures = {
        key: tuple(layer[key].summarise() for layer in complete.values()) for key in first if key != "similarity"
    }
    similarity = tuple(layer["similarity"].mean for layer in complete.values())
    return Statistics(tuple(complete), first["sink"].count, measures, similarity, layout, tuple(skipped.values()))


@contextmanager
def watch_batches(
    model: nn.Module, layers: Sequence[str], visit: Callable[[str, AttentionCall], None]
) -> Iterator[Callable[[], None]]:
    """Watch layers that must run once in each batch; call the function that this yields before each batch.

    Raises: ValueError for a model in training mode, whose outputs are random.
    """
    if model.training:
        raise ValueError("model must be in evaluation mode, got model.training=True; call model.eval()")
    calls: set[str] = set()
    started = False

    def record(name: str, call: AttentionCall) -> None:
        if name in calls:
            raise ValueError(f"layers must run once for each batch, got {name} twice; leave it out")
        calls.add(name)
        visit(name, call)

    def start() -> None:
        nonlocal started
        check_calls()
        calls.clear()
        started = True

    def check_calls() -> None:
        if started and (absent := [name for name in layers if name not in calls]):
            raise CaptureError(f"layers must run and show their attention, got none from {', '.join(absent[:5])}")

    with watch_layers({name: model.get_submodule(name) for name in layers}, record):
        yield start
        check_calls()


def measure_weights(
    weights: Float[Tensor, "B H T T"],
    groups: Mapping[str, slice],
    prefix: int,
    distances: Float[Tensor, "N N"],
) -> dict[str, Tensor]:
    """Return each measure (B, H), and the similarity of heads (B, H, H)."""
    patches = weights[..., prefix:, prefix:]
    mass = patches.sum(-1)
    mean_distance = torch.einsum("bhqk,qk->bhq", patches, distances) / mass  # nan for a patch that attends to no patch
    received = weights.mean(2)  # (B, H, T)
    flat = F.normalize(weights.flatten(2), dim=-1)
    return {
        "distance": mean_distance.nanmean(-1),
        "entropy": torch.special.entr(weights).sum(-1).mean(-1),
        "diagonal": weights.diagonal(dim1=2, dim2=3).mean(-1),
        "sink": received.max(-1).values,
        **{name: received[..., tokens].sum(-1) for name, tokens in groups.items()},
        "similarity": flat @ flat.mT,
    }


def split_batch(call: AttentionCall) -> Iterator[AttentionCall]:
    """Yield a batch whole, or image by image if its weights would be large."""
    B, H, T, S = call.shape
    if B * H * T * S <= LARGEST:
        yield call
        return
    for image in range(B):
        yield select_images(call, slice(image, image + 1))


def select_images(call: AttentionCall, images: slice) -> AttentionCall:
    if not isinstance(call, Call):
        return replace(call, probabilities=call.probabilities[images])
    mask, bias = (x if x is None or len(x) == 1 else x[images] for x in (call.mask, call.bias))
    output = None if call.output is None else call.output[images]
    return replace(call, q=call.q[images], k=call.k[images], v=call.v[images], mask=mask, bias=bias, output=output)


def group_tokens(layout: Layout) -> dict[str, slice]:
    """Return the tokens of each kind, which are adjacent."""
    indices: dict[str, list[int]] = {}
    for index, name in enumerate(layout.prefix):
        kind = "registers" if name.startswith("reg") else "distillation" if name.startswith("dist") else name
        indices.setdefault(kind, []).append(index)
    groups = {kind: slice(tokens[0], tokens[-1] + 1) for kind, tokens in indices.items()}
    return {**groups, "patches": slice(len(layout.prefix), layout.num_tokens)}


def compute_patch_distances(layout: Layout) -> Float[Tensor, "N N"]:
    """Return the Euclidean distances between the patches of a grid, in patches."""
    cells = torch.cartesian_prod(*(torch.arange(side, dtype=torch.float64) for side in layout.grid))
    return torch.cdist(cells, cells)
