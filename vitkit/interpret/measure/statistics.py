"""How the heads of a model attend, over data: one picture says little.

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
from vitkit.interpret.measure.moments import Moments, Summary, numbers
from vitkit.interpret.see.calls import Call, Seen
from vitkit.interpret.see.layers import NotCaptured, chosen
from vitkit.interpret.see.seams import watching

LARGEST = 64_000_000  # weights at a time, 256 MB: of more, pictures come one after another
UNITS = {"distance": "patches", "entropy": "nats"}  # others are shares of attention, from 0 to 1
Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Statistics:
    """What `statistics` found over `count` pictures.

    `measures` has a Summary of (H,) for each layer, by these names; of a picture each is a mean over its queries:

    - distance: from a patch to the patches it looks at, in patches, Euclidean, weighted by attention; prefix keys are
      dropped and the rest of a row is brought to sum 1 again (https://arxiv.org/abs/2010.11929, appendix D.7).
    - entropy: of a row over all keys, in nats.
    - diagonal: what a token gives itself.
    - sink: what the one key gets that gets most, whichever it is in a picture.
    - cls, registers, distillation, patches: what goes to these; those that the model has.

    `similarity` of heads is the cosine of their flattened maps, (H, H) for each layer, a mean over pictures.
    `skipped` says which layers could not be measured, and why.
    """

    layers: tuple[str, ...]
    count: int
    measures: dict[str, tuple[Summary, ...]]
    similarity: tuple[Float[Tensor, "_ _"], ...]
    layout: Layout
    skipped: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is unknown is None."""
        return {
            "layers": [*self.layers],
            "pictures": self.count,
            "grid": [*self.layout.grid],
            "prefix": [*self.layout.prefix],
            "units": {name: UNITS.get(name, "share") for name in self.measures},
            "measures": {name: [one.to_dict() for one in found] for name, found in self.measures.items()},
            "similarity": [[numbers(row) for row in matrix] for matrix in self.similarity],
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
    """Over any number of pictures: of a layer's weights only sums are kept, as soon as they are seen.

    Args:
        model: in evaluation mode.
        run: what makes the model see a batch; what it gives is not used.
        layers: names, or patterns as in `layers.chosen`; one that attends from or to other tokens than the layout's is
            skipped, as those of a pooling layer.

    Raises: ValueError without pictures, and where no layer can be measured.
    """
    found, skipped = {name: dict[str, Moments]() for name in chosen(model, layers)}, dict[str, str]()
    groups, apart = grouped(layout), compute_patch_distances(layout)

    def measure(name: str, seen: Seen) -> None:
        if seen.shape[2:] != (layout.tokens, layout.tokens):
            skipped[name] = f"{name} attends from {seen.shape[2]} to {seen.shape[3]} tokens, not to {layout.tokens}"
            return
        for part in portions(seen):
            weights = part.weights()
            for key, values in measured(weights, groups, len(layout.prefix), apart.to(weights)).items():
                found[name].setdefault(key, Moments()).add(values)

    with once(model, [*found], measure) as start:
        for images in batches:
            start()
            run(images)
    complete = {name: moments for name, moments in found.items() if name not in skipped}
    if not complete or not all(complete.values()):
        why = "; ".join([*skipped.values()][:3]) or "batches must hold pictures, got none"
        raise ValueError(f"statistics must have a layer and pictures to measure: {why}")
    first = next(iter(complete.values()))
    measures = {key: tuple(one[key].summary() for one in complete.values()) for key in first if key != "similarity"}
    alike = tuple(one["similarity"].mean for one in complete.values())
    return Statistics(tuple(complete), first["sink"].count, measures, alike, layout, tuple(skipped.values()))


@contextmanager
def once(model: nn.Module, layers: Sequence[str], visit: Callable[[str, Seen], None]) -> Iterator[Callable[[], None]]:
    """Watching, where each layer must run once for each batch, whose start is told by what this gives.

    Raises: ValueError for a model in training mode, whose answers are drawn at random.
    """
    if model.training:
        raise ValueError("model must be in evaluation mode, where an image's answer is its own; call model.eval()")
    ran: set[str] = set()
    started = False

    def noted(name: str, seen: Seen) -> None:
        if name in ran:
            raise ValueError(f"layers must run once for each batch, got {name} twice; leave it out")
        ran.add(name)
        visit(name, seen)

    def start() -> None:
        nonlocal started
        complete()
        ran.clear()
        started = True

    def complete() -> None:
        if started and (absent := [name for name in layers if name not in ran]):
            raise NotCaptured(f"layers must run and show their attention, got none of {', '.join(absent[:5])}")

    with watching({name: model.get_submodule(name) for name in layers}, noted):
        yield start
        complete()


def measured(
    weights: Float[Tensor, "B H T T"],
    groups: Mapping[str, slice],
    prefix: int,
    apart: Float[Tensor, "N N"],
) -> dict[str, Tensor]:
    """(B, H) for each measure, and the (B, H, H) similarity of heads."""
    patches = weights[..., prefix:, prefix:]
    mass = patches.sum(-1)
    mean_distance = torch.einsum("bhqk,qk->bhq", patches, apart) / mass  # nan where a patch looks at no patch
    received = weights.mean(2)  # (B, H, T)
    flat = F.normalize(weights.flatten(2), dim=-1)
    return {
        "distance": mean_distance.nanmean(-1),
        "entropy": torch.special.entr(weights).sum(-1).mean(-1),
        "diagonal": weights.diagonal(dim1=2, dim2=3).mean(-1),
        "sink": received.max(-1).values,
        **{name: received[..., part].sum(-1) for name, part in groups.items()},
        "similarity": flat @ flat.mT,
    }


def portions(seen: Seen) -> Iterator[Seen]:
    """A batch whose weights would be large, picture by picture."""
    B, H, T, S = seen.shape
    if B * H * T * S <= LARGEST:
        yield seen
        return
    for place in range(B):
        yield picture(seen, slice(place, place + 1))


def picture(seen: Seen, part: slice) -> Seen:
    if not isinstance(seen, Call):
        return replace(seen, own=seen.own[part])
    mask, bias = (one if one is None or len(one) == 1 else one[part] for one in (seen.mask, seen.bias))
    output = None if seen.output is None else seen.output[part]
    return replace(seen, q=seen.q[part], k=seen.k[part], v=seen.v[part], mask=mask, bias=bias, output=output)


def grouped(layout: Layout) -> dict[str, slice]:
    """Where the tokens of each kind stand; of one kind they stand together."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(layout.prefix):
        kind = "registers" if name.startswith("reg") else "distillation" if name.startswith("dist") else name
        found.setdefault(kind, []).append(place)
    parts = {kind: slice(places[0], places[-1] + 1) for kind, places in found.items()}
    return {**parts, "patches": slice(len(layout.prefix), layout.tokens)}


def compute_patch_distances(layout: Layout) -> Float[Tensor, "N N"]:
    """Between the patches of a grid, in patches."""
    cells = torch.cartesian_prod(*(torch.arange(side, dtype=torch.float64) for side in layout.grid))
    return torch.cdist(cells, cells)
