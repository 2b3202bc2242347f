"""Figures of attention maps, on the photo and beside it.

H heads, h w patches down and across, N photos.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitkit.evaluation.figures import DPI
from vitkit.interpret.draw.panels import (
    SHARE,
    Scale,
    add_caption,
    add_colour_bar,
    draw_map,
    draw_outline,
    draw_photo,
    make_scale,
    set_title,
)
from vitkit.interpret.maps.geometry import Box, Frame, Number
from vitkit.support.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL, MIN_SIDE = 2.9, 1.5  # inches: the longer side of a panel, and the least of a side
MARGIN = 2  # times the crop on either side: a photo of 5:1 is still shown whole
# Metadata by file suffix: without the time, so that equal figures are equal files.
FORMATS: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


class PhotoMap(NamedTuple):
    """A photo and a model's map of it. `photo` is upright, as `Preprocess.convert` returns it."""

    photo: Image.Image
    frame: Frame
    map: Float[Tensor, "h w"]
    title: str = ""


def draw_overlay(
    photo: Image.Image,
    frame: Frame,
    map: Float[Tensor, "h w"],
    *,
    query: tuple[int, int] | None = None,
    caption: str = "",
    unit: str = SHARE,
    robust: bool = False,
) -> "Figure":
    """Draw the photo with the model's crop, the map on it, and the map alone with its colour bar.

    Args:
        photo: upright, as `Preprocess.convert` returns it.
        query: (row, column) of the query patch, which is outlined.
        caption: model, layer, head and query; a note on the colour scale is added.
        unit: of the map's values.
        robust: as in `panels.make_scale`.

    Raises: ValueError for a map of another grid, or a photo of another size, than the frame's.
    """
    from matplotlib.figure import Figure

    check_sizes(photo, frame, map)
    left, top, right, bottom = visible = limit_box(photo, frame)
    width, height = fit_panel((right - left, bottom - top))
    figure = Figure((3 * width + 1.3, height + 0.45), layout="constrained")
    scale = make_scale(map, robust=robust)
    panels = figure.subplots(1, 3)
    titles = ("photo with the model's crop", "map on the photo", "map")
    for axes, title, below in zip(panels, titles, (False, True, True), strict=True):
        draw_photo(axes, photo, visible, below=below)
        set_title(axes, title)
    draw_map(panels[1], frame, map, scale, overlay=True)
    draw_map(panels[2], frame, map, scale)
    for axes in panels:
        draw_outline(axes, frame.box)
        if query is not None:
            draw_outline(axes, frame.get_patch_box(*query))
    add_colour_bar(figure, scale, panels, unit)
    add_caption(figure, caption, f"{unit} per patch, {scale.description}")
    return figure


def limit_box(photo: Image.Image, frame: Frame) -> Box:
    """Return the box of a photo to show: all of it, but of a very long one only the surroundings of the crop."""
    left, top, right, bottom = frame.box
    across, down = MARGIN * (right - left), MARGIN * (bottom - top)
    return (
        max(0, left - across),
        max(0, top - down),
        min(photo.width, right + across),
        min(photo.height, bottom + down),
    )


def draw_heads(
    photo: Image.Image,
    frame: Frame,
    maps: Float[Tensor, "H h w"],
    *,
    titles: Sequence[str] = (),
    query: tuple[int, int] | None = None,
    caption: str = "",
    unit: str = SHARE,
    robust: bool = False,
) -> "Figure":
    """Draw the model's input, the frame's box of a photo, then a map for each head, all on one colour scale.

    Args: titles: one for each head (default: its index). Other arguments and errors as in `draw_overlay`.
    """
    from matplotlib.figure import Figure

    check_sizes(photo, frame, maps[0])
    names = titles or [f"head {head}" for head in range(len(maps))]
    if len(names) != len(maps):
        raise ValueError(f"titles must be one for each of {len(maps)} heads, got {len(names)}")
    rows, columns = arrange_panels(len(maps) + 1)
    left, top, right, bottom = frame.box
    width, height = (0.8 * length for length in fit_panel((right - left, bottom - top)))
    figure = Figure((columns * width + 1.2, rows * (height + 0.25) + 0.2), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    scale, first = make_scale(maps, robust=robust), panels.flat[0]
    for axes in panels.flat:
        axes.set_axis_off()
    draw_photo(first, photo, frame.box)
    set_title(first, "model's input")
    for axes, map, name in zip(panels.flat[1:], maps, names, strict=False):
        axes.set(xlim=(left, right), ylim=(bottom, top))
        draw_map(axes, frame, map, scale)
        set_title(axes, name)
    for axes in panels.flat[: len(maps) + 1] if query is not None else ():
        draw_outline(axes, frame.get_patch_box(*(query or (0, 0))))
    add_colour_bar(figure, scale, panels, unit, aspect=25 * rows)
    add_caption(figure, caption, f"{unit} per patch, {scale.description}; one scale for all heads")
    return figure


def draw_gallery(photos: Sequence[PhotoMap], *, caption: str = "", unit: str = SHARE, robust: bool = False) -> "Figure":
    """Draw photos above and their maps on them below, each with its own colour scale and the scale's ends.

    Raises: as `draw_overlay`.
    """
    from matplotlib.figure import Figure

    for photo, frame, map, _ in photos:
        check_sizes(photo, frame, map)
    side = 0.65 * PANEL
    figure = Figure((max(side * len(photos), 4), 2 * side + 0.5), layout="constrained")
    for index, (photo, frame, map, title) in enumerate(photos):
        above, below = (figure.add_subplot(2, len(photos), index + 1 + row * len(photos)) for row in (0, 1))
        scale = make_scale(map, robust=robust)
        draw_photo(above, photo, frame.box)
        set_title(above, title)
        draw_photo(below, photo, frame.box, below=True)
        draw_map(below, frame, map, scale, overlay=True)
        below.set_title(f"{scale.low:.2g} to {scale.high:.2g}", fontsize=7, y=-0.12)
    ends = "colours end at its 98th percentile" if robust else "not rescaled"
    add_caption(figure, caption, f"{unit} per patch, one scale for each photo, its ends below it: {ends}")
    return figure


def render_map(map: Float[Tensor, "h w"], scale: Scale, size: tuple[int, int]) -> Image.Image:
    """Return a map alone in the scale's colours, one for each patch, resized to (width, height) pixels."""
    from matplotlib import colormaps

    shares = (map.detach().float().cpu().numpy() - scale.low) / (scale.high - scale.low)
    colours = colormaps[scale.colours](shares, bytes=True)
    return Image.fromarray(colours).convert("RGB").resize(size, Image.Resampling.NEAREST)


def check_sizes(photo: Image.Image, frame: Frame, map: Tensor) -> None:
    if photo.size != frame.photo:
        raise ValueError(f"photo must have the frame's size {frame.photo}, got {photo.size}")
    if tuple(map.shape) != frame.grid:
        raise ValueError(f"map must be of the grid {frame.grid}, got {tuple(map.shape)}")


def fit_panel(size: tuple[Number, Number]) -> tuple[float, float]:
    """Return a panel's size in inches for a photo of (width, height); titles and colour bar need a minimum."""
    return max(PANEL * size[0] / max(size), MIN_SIDE), max(PANEL * size[1] / max(size), MIN_SIDE)


def arrange_panels(count: int) -> tuple[int, int]:
    """Return rows and columns of panels with few empty ones."""
    columns = min(range(4, 7), key=lambda columns: -count % columns) if count > 4 else count
    return -(-count // columns), columns


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Save a figure as PNG, SVG or PDF by its suffix, atomically. Raises: ValueError for another suffix."""
    from matplotlib import rc_context

    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"path must end in {', '.join(FORMATS)}, got path={path}")
    settings = rc_context({"svg.hashsalt": "vitkit", "pdf.fonttype": 42})  # text in a PDF stays text
    with warnings.catch_warnings(), settings, replace_file(path) as temporary:
        warnings.simplefilter("ignore")  # characters that the font lacks are drawn as boxes
        figure.savefig(temporary, format=path.suffix[1:], dpi=DPI, metadata=FORMATS[path.suffix])
