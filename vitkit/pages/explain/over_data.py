"""Statistics over many pictures in the numbers that a page shows.

T tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.measure.statistics import Statistics, compute_patch_distances, group_tokens
from vitkit.support.texts import Sentence


def describe_statistics(
    found: Statistics, flags: Sequence[Sentence], source: str, layers: Sequence[str], texts: Mapping[str, str]
) -> dict[str, Any]:
    """Args: source: what the pictures are; layers: all of the model, which are numbered by their place."""
    whole = found.to_dict()
    uniform = even(found.layout)
    return {
        "source": source,
        "count": found.count,
        "places": [layers.index(name) for name in found.layers],
        "measures": whole["measures"],
        "even": {name: uniform[name] for name in whole["measures"]},
        "similarity": whole["similarity"],
        "flags": [flag.within(texts) for flag in flags],
    }


def even(layout: Layout) -> dict[str, float]:
    """Each measure of a head that looks at all T tokens alike."""
    each = 1 / layout.num_tokens
    return {
        "distance": compute_patch_distances(layout).mean().item(),
        "entropy": math.log(layout.num_tokens),
        "diagonal": each,
        "sink": each,
        **{name: len(range(layout.num_tokens)[part]) * each for name, part in group_tokens(layout).items()},
    }
