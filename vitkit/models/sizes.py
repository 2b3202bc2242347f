"""Model sizes by their usual names, for all families."""

from functools import partial
from typing import Any, NamedTuple

from vitkit.nn import MLP, Encoder


class Size(NamedTuple):
    dim: int
    depth: int
    heads: int
    ratio: float = 4.0


# https://arxiv.org/abs/2010.11929 table 1 (b, l, h); 2012.12877 table 1 (ti, s); 2305.13035 table 1 (so400m)
SIZES = {
    "ti": Size(192, 12, 3),
    "s": Size(384, 12, 6),
    "b": Size(768, 12, 12),
    "l": Size(1024, 24, 16),
    "h": Size(1280, 32, 16),
    "so400m": Size(1152, 27, 16, 4304 / 1152),
}


def encoder(size: str, **slots: Any) -> Encoder:
    """Build an Encoder of this size, as in `encoder("b", causal=True)`."""
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got size={size!r}")
    dim, depth, heads, ratio = SIZES[size]
    return Encoder(dim, depth, heads, **{"mlp": partial(MLP, ratio=ratio), **slots})
