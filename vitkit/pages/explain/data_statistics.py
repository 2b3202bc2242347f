"""Statistics over many images, as numbers that a page shows.

T tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.measure.statistics import Statistics, compute_patch_distances, group_tokens
from vitkit.support.texts import Sentence


def describe_statistics(
    statistics: Statistics, flags: Sequence[Sentence], source: str, layers: Sequence[str], texts: Mapping[str, str]
) -> dict[str, Any]:
    """Return the statistics, those of uniform attention, and the flags as texts.

    Args: source: where the images come from; layers: all layers of the model, which give a layer its number.
    """
    numbers = statistics.to_dict()
    uniform = compute_uniform_measures(statistics.layout)
    return {
        "source": source,
        "count": statistics.count,
        "places": [layers.index(name) for name in statistics.layers],
        "measures": numbers["measures"],
        "uniform": {name: uniform[name] for name in numbers["measures"]},
        "similarity": numbers["similarity"],
        "flags": [flag.format(texts) for flag in flags],
    }


def compute_uniform_measures(layout: Layout) -> dict[str, float]:
    """Return each measure for a head with uniform attention: weight 1 / T on every token."""
    weight = 1 / layout.num_tokens
    return {
        "distance": compute_patch_distances(layout).mean().item(),
        "entropy": math.log(layout.num_tokens),
        "diagonal": weight,
        "sink": weight,
        **{name: len(range(layout.num_tokens)[part]) * weight for name, part in group_tokens(layout).items()},
    }
