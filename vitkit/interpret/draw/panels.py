"""What the figures are made of: scales of colour, photos, frames, captions.

h w patches down and across.
"""

import textwrap
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitkit.interpret.maps.geometry import Box, Frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARE = "share of attention"
ROBUST = 0.98  # the quantile at which a robust scale ends
SHARPEST = 900  # pixels of a photo's longer side in a figure
DIM = 0.75  # of a photo's light, below a map
VEIL = 0.15, 0.9  # how opaque the least and the most are on a photo; what is between, by its root, to be seen
LETTERS = 8  # points


class Scale(NamedTuple):
    """Which numbers the ends of the colours are, and in words how that came about."""

    colours: str
    low: float
    high: float
    robust: bool
    told: str


def scale_of(values: Float[Tensor, "*B"], *, robust: bool = False) -> Scale:
    """From 0 to the largest; values of both signs have 0 in the middle of two colours. What is not finite is left out.

    Args: robust: ends at the 98th percentile, where few tokens take nearly all; what is above has the last colour.
    """
    sizes = values.detach().float().abs().flatten()
    sizes = sizes[sizes.isfinite()]
    largest = sizes.max().item() if len(sizes) else 0.0
    end = sizes.quantile(ROBUST).item() if robust and len(sizes) else largest
    told = f"colours end at the 98th percentile, {end:.3g}; the largest is {largest:.3g}" if robust else "not rescaled"
    high = end or 1.0
    signed = bool((values < 0).any())
    return Scale("RdBu_r" if signed else "viridis", -high if signed else 0.0, high, robust, told)


def draw_photo(axes: "Axes", photo: Image.Image, box: Box, *, below: bool = False) -> None:
    """The photo in the coordinates of its own pixels, of which the box is visible; below a map it is grey and dim."""
    left, top, right, bottom = box
    part = floor(max(left, 0)), floor(max(top, 0)), ceil(min(right, photo.width)), ceil(min(bottom, photo.height))
    small = photo.crop(part)
    small.thumbnail((SHARPEST, SHARPEST))
    pixels = np.asarray(small.convert("L").convert("RGB")) * DIM if below else np.asarray(small.convert("RGB"))
    axes.imshow(pixels.astype(np.uint8), extent=(part[0], part[2], part[3], part[1]), interpolation="antialiased")
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set_axis_off()


def laid(axes: "Axes", frame: Frame, map: Float[Tensor, "h w"], scale: Scale, *, veil: bool = False) -> Any:
    """The map where it belongs; each patch is one flat colour. A veil lets the photo through where there is little."""
    left, top, right, bottom = frame.box
    limits = axes.get_xlim(), axes.get_ylim()
    values = map.detach().float().cpu().numpy()
    least, most = VEIL
    drawn = axes.imshow(
        values,
        cmap=scale.colours,
        vmin=scale.low,
        vmax=scale.high,
        alpha=least + (most - least) * (np.abs(values) / scale.high).clip(0, 1) ** 0.5 if veil else None,
        extent=(left, right, bottom, top),
        interpolation="nearest",
    )
    axes.set(xlim=limits[0], ylim=limits[1])
    return drawn


def outlined(axes: "Axes", box: Box) -> None:
    """A line that is seen on light and on dark."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    left, top, right, bottom = box
    line = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="white", linewidth=1)
    line.set_path_effects([Stroke(linewidth=2.2, foreground="black"), Normal()])
    line.set_clip_on(False)
    axes.add_patch(line)


def titled(axes: "Axes", title: str) -> None:
    """A name is text, also where it holds $."""
    axes.set_title(title, fontsize=LETTERS, parse_math=False)


def barred(figure: "Figure", scale: Scale, panels: Any, unit: str, aspect: int = 25) -> None:
    """The colours, opaque, with their numbers."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    solid = ScalarMappable(Normalize(scale.low, scale.high), scale.colours)
    beyond = ("both" if scale.low < 0 else "max") if scale.robust else "neither"
    bar = figure.colorbar(solid, ax=panels, shrink=0.9, aspect=aspect, pad=0.02, extend=beyond)
    bar.set_label(unit, fontsize=LETTERS, parse_math=False)
    bar.ax.tick_params(labelsize=LETTERS - 1)


def add_caption(figure: "Figure", caption: str, scaling: str) -> None:
    """Below everything, in as many lines as the width asks for, by which the figure grows."""
    figure.set_layout_engine("constrained", h_pad=0.07)  # inches
    letters = int(figure.get_figwidth() * 72 / (LETTERS * 0.56))  # a letter is about so wide
    lines = [part for line in [*caption.splitlines(), scaling] for part in textwrap.wrap(line, letters)]
    figure.set_figheight(figure.get_figheight() + len(lines) * LETTERS * 1.3 / 72)
    figure.supxlabel("\n".join(lines), fontsize=LETTERS, x=0.01, ha="left", parse_math=False)
