"""Parts of the figures: colour scales, photos, maps, captions.

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
MAX_SIDE = 900  # pixels of a photo's longer side in a figure
BRIGHTNESS = 0.75  # of a photo below a map
OPACITY = 0.15, 0.9  # of the lowest and highest values on a photo; by the square root between, so that low ones show
FONT_SIZE = 8  # points


class Scale(NamedTuple):
    """A colour map with the values at its ends, and a description of how they were chosen."""

    colours: str
    low: float
    high: float
    robust: bool
    description: str


def make_scale(values: Float[Tensor, "*B"], *, robust: bool = False) -> Scale:
    """Return a scale from 0 to the largest value, or symmetric about 0 for values of both signs.

    Values that are not finite are ignored.

    Args: robust: end at the 98th percentile, for maps where few tokens get nearly all; higher values are clipped.
    """
    sizes = values.detach().float().abs().flatten()
    sizes = sizes[sizes.isfinite()]
    largest = sizes.max().item() if len(sizes) else 0.0
    end = sizes.quantile(ROBUST).item() if robust and len(sizes) else largest
    clipped = f"colours end at the 98th percentile, {end:.3g}; the largest is {largest:.3g}"
    description = clipped if robust else "not rescaled"
    high = end or 1.0
    signed = bool((values < 0).any())
    return Scale("RdBu_r" if signed else "viridis", -high if signed else 0.0, high, robust, description)


def draw_photo(axes: "Axes", photo: Image.Image, box: Box, *, below: bool = False) -> None:
    """Draw the box of a photo in the photo's pixel coordinates; below a map it is grey and darker."""
    left, top, right, bottom = box
    crop = floor(max(left, 0)), floor(max(top, 0)), ceil(min(right, photo.width)), ceil(min(bottom, photo.height))
    small = photo.crop(crop)
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    pixels = np.asarray(small.convert("L").convert("RGB")) * BRIGHTNESS if below else np.asarray(small.convert("RGB"))
    axes.imshow(pixels.astype(np.uint8), extent=(crop[0], crop[2], crop[3], crop[1]), interpolation="antialiased")
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set_axis_off()


def draw_map(axes: "Axes", frame: Frame, map: Float[Tensor, "h w"], scale: Scale, *, overlay: bool = False) -> Any:
    """Draw a map at its place on the photo, a flat colour for each patch; an overlay is transparent for low values."""
    left, top, right, bottom = frame.box
    limits = axes.get_xlim(), axes.get_ylim()
    values = map.detach().float().cpu().numpy()
    low, high = OPACITY
    image = axes.imshow(
        values,
        cmap=scale.colours,
        vmin=scale.low,
        vmax=scale.high,
        alpha=low + (high - low) * (np.abs(values) / scale.high).clip(0, 1) ** 0.5 if overlay else None,
        extent=(left, right, bottom, top),
        interpolation="nearest",
    )
    axes.set(xlim=limits[0], ylim=limits[1])
    return image


def draw_outline(axes: "Axes", box: Box) -> None:
    """Draw a box that is visible on light and dark backgrounds."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    left, top, right, bottom = box
    line = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="white", linewidth=1)
    line.set_path_effects([Stroke(linewidth=2.2, foreground="black"), Normal()])
    line.set_clip_on(False)
    axes.add_patch(line)


def set_title(axes: "Axes", title: str) -> None:
    """Set a title without reading $ as mathematics."""
    axes.set_title(title, fontsize=FONT_SIZE, parse_math=False)


def add_colour_bar(figure: "Figure", scale: Scale, panels: Any, unit: str, aspect: int = 25) -> None:
    """Add the opaque colours with their values."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    solid = ScalarMappable(Normalize(scale.low, scale.high), scale.colours)
    extend = ("both" if scale.low < 0 else "max") if scale.robust else "neither"
    bar = figure.colorbar(solid, ax=panels, shrink=0.9, aspect=aspect, pad=0.02, extend=extend)
    bar.set_label(unit, fontsize=FONT_SIZE, parse_math=False)
    bar.ax.tick_params(labelsize=FONT_SIZE - 1)


def add_caption(figure: "Figure", caption: str, scaling: str) -> None:
    """Add a caption and a note on the scale below the figure, which grows by their lines."""
    figure.set_layout_engine("constrained", h_pad=0.07)  # inches
    letters_per_line = int(figure.get_figwidth() * 72 / (FONT_SIZE * 0.56))  # a letter is about so wide
    lines = [row for line in [*caption.splitlines(), scaling] for row in textwrap.wrap(line, letters_per_line)]
    figure.set_figheight(figure.get_figheight() + len(lines) * FONT_SIZE * 1.3 / 72)
    figure.supxlabel("\n".join(lines), fontsize=FONT_SIZE, x=0.01, ha="left", parse_math=False)
