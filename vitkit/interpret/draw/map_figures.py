"""Maps of attention beside and on the photo, as figures whose colours are numbers.

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
from vitkit.interpret.draw.panels import SHARE, add_caption, barred, draw_photo, laid, outlined, scale_of, titled
from vitkit.interpret.maps.geometry import Box, Frame, Number
from vitkit.support.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL, LEAST = 2.9, 1.5  # inches: the longer side of a panel; a side at least
AROUND = 2  # times what the model sees, to either side: a photo of 5:1 is still shown whole
# By the end of a file's name; without the time, so that equal figures are equal files.
STORED: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


class Seen(NamedTuple):
    """A photo and what a model looks at in it. `photo` is upright, as `Preprocess.convert` gives it."""

    photo: Image.Image
    frame: Frame
    map: Float[Tensor, "h w"]
    title: str = ""


def overlay(
    photo: Image.Image,
    frame: Frame,
    map: Float[Tensor, "h w"],
    *,
    query: tuple[int, int] | None = None,
    caption: str = "",
    unit: str = SHARE,
    robust: bool = False,
) -> "Figure":
    """The photo with the part that the model sees, the map on it, and the map alone beside the scale of its colours.

    Args:
        photo: upright, as `Preprocess.convert` gives it.
        query: (row, column) of the patch that looks, which is marked.
        caption: which model, layer, head and query; how colours are scaled is added.
        unit: what a number of the map is.
        robust: as in `panels.scale_of`.

    Raises: ValueError for a map of another grid, or a photo of another size, than the frame's.
    """
    from matplotlib.figure import Figure

    checked(photo, frame, map)
    left, top, right, bottom = visible = near(photo, frame)
    width, height = sides((right - left, bottom - top))
    figure = Figure((3 * width + 1.3, height + 0.45), layout="constrained")
    scale = scale_of(map, robust=robust)
    panels = figure.subplots(1, 3)
    titles = ("photo, and what the model sees of it", "what it looks at", "in numbers")
    for axes, title, below in zip(panels, titles, (False, True, True), strict=True):
        draw_photo(axes, photo, visible, below=below)
        titled(axes, title)
    laid(panels[1], frame, map, scale, veil=True)
    laid(panels[2], frame, map, scale)
    for axes in panels:
        outlined(axes, frame.box)
        if query is not None:
            outlined(axes, frame.get_patch_box(*query))
    barred(figure, scale, panels, unit)
    add_caption(figure, caption, f"{unit} per patch, {scale.told}")
    return figure


def near(photo: Image.Image, frame: Frame) -> Box:
    """All of the photo, but of a very long one only what is near to what the model sees: it would be a hair."""
    left, top, right, bottom = frame.box
    across, down = AROUND * (right - left), AROUND * (bottom - top)
    return (
        max(0, left - across),
        max(0, top - down),
        min(photo.width, right + across),
        min(photo.height, bottom + down),
    )


def heads_of_layer(
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
    """What the model sees, then a map for each head; equal colours are equal numbers in all of them.

    Args: titles: one for each head (default: its place). Others, and what is raised: as in `overlay`.
    """
    from matplotlib.figure import Figure

    checked(photo, frame, maps[0])
    names = titles or [f"head {place}" for place in range(len(maps))]
    if len(names) != len(maps):
        raise ValueError(f"titles must be one for each of {len(maps)} heads, got {len(names)}")
    rows, columns = arranged(len(maps) + 1)
    left, top, right, bottom = frame.box
    width, height = (0.8 * side for side in sides((right - left, bottom - top)))
    figure = Figure((columns * width + 1.2, rows * (height + 0.25) + 0.2), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    scale, first = scale_of(maps, robust=robust), panels.flat[0]
    for axes in panels.flat:
        axes.set_axis_off()
    draw_photo(first, photo, frame.box)
    titled(first, "what the model sees")
    for axes, map, name in zip(panels.flat[1:], maps, names, strict=False):
        axes.set(xlim=(left, right), ylim=(bottom, top))
        laid(axes, frame, map, scale)
        titled(axes, name)
    for axes in panels.flat[: len(maps) + 1] if query is not None else ():
        outlined(axes, frame.get_patch_box(*(query or (0, 0))))
    barred(figure, scale, panels, unit, aspect=25 * rows)
    add_caption(figure, caption, f"{unit} per patch, {scale.told}; one scale for all heads")
    return figure


def gallery(pictures: Sequence[Seen], *, caption: str = "", unit: str = SHARE, robust: bool = False) -> "Figure":
    """Photos above, their maps on them below. Each has its own scale of colours: the end of it is told below the map.

    Raises: as `overlay`.
    """
    from matplotlib.figure import Figure

    for photo, frame, map, _ in pictures:
        checked(photo, frame, map)
    side = 0.65 * PANEL
    figure = Figure((max(side * len(pictures), 4), 2 * side + 0.5), layout="constrained")
    for place, (photo, frame, map, title) in enumerate(pictures):
        above, below = (figure.add_subplot(2, len(pictures), place + 1 + row * len(pictures)) for row in (0, 1))
        scale = scale_of(map, robust=robust)
        draw_photo(above, photo, frame.box)
        titled(above, title)
        draw_photo(below, photo, frame.box, below=True)
        laid(below, frame, map, scale, veil=True)
        below.set_title(f"{scale.low:.2g} to {scale.high:.2g}", fontsize=7, y=-0.12)
    ends = "colours end at its 98th percentile" if robust else "not rescaled"
    add_caption(figure, caption, f"{unit} per patch, on a scale for each photo, told below it: {ends}")
    return figure


def checked(photo: Image.Image, frame: Frame, map: Tensor) -> None:
    if photo.size != frame.photo:
        raise ValueError(f"photo must have the frame's size {frame.photo}, got {photo.size}")
    if tuple(map.shape) != frame.grid:
        raise ValueError(f"map must be of the grid {frame.grid}, got {tuple(map.shape)}")


def sides(size: tuple[Number, Number]) -> tuple[float, float]:
    """Inches, of something so wide and high; titles and the scale of colours need some."""
    return max(PANEL * size[0] / max(size), LEAST), max(PANEL * size[1] / max(size), LEAST)


def arranged(count: int) -> tuple[int, int]:
    """Rows and columns of which few stay empty."""
    columns = min(range(4, 7), key=lambda columns: -count % columns) if count > 4 else count
    return -(-count // columns), columns


def save_figure(figure: "Figure", path: str | Path) -> None:
    """As PNG, SVG or PDF, by the end of the name; the file is whole or not there. Raises: ValueError for others."""
    from matplotlib import rc_context

    path = Path(path)
    if path.suffix not in STORED:
        raise ValueError(f"path must end in {', '.join(STORED)}, got path={path}")
    settings = rc_context({"svg.hashsalt": "vitkit", "pdf.fonttype": 42})  # letters of a PDF stay letters
    with warnings.catch_warnings(), settings, replace_file(path) as beside:
        warnings.simplefilter("ignore")  # names in a script that the font lacks are drawn as boxes
        figure.savefig(beside, format=path.suffix[1:], dpi=DPI, metadata=STORED[path.suffix])
