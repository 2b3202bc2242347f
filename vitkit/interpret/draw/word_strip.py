"""Figures of a text's tokens, coloured by their values. S tokens."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from vitkit.data.tokenizer import Tokenizer
from vitkit.data.vocabularies.vocabulary import name_id
from vitkit.interpret.draw.panels import SHARE, add_caption, add_colour_bar, make_scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE_WIDTH, BOX_HEIGHT, PADDING = 480.0, 22.0, 8.0  # points
FONT_SIZE = 11  # points
WHITESPACE = {"": "□", " ": "␣", "\n": "⏎", "\t": "⇥"}  # so that a box is never empty


def spell_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each id by itself; bytes that are no whole character are U+FFFD."""
    vocabulary = tokenizer.vocabulary
    return [name_id(vocabulary, id) for id in ids]


def draw_tokens(
    words: Sequence[str],
    weights: Float[Tensor, " S"],
    *,
    caption: str = "",
    unit: str = SHARE,
    robust: bool = False,
) -> "Figure":
    """Draw the tokens of a text as boxes in reading order, each in the colour of its value.

    Args: words: as `spell_tokens` spells them. unit, robust: as in `map_figures.draw_overlay`.
    Raises: ValueError for unequal numbers of words and weights.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if len(words) != len(weights) or not words:
        raise ValueError(f"weights must be one for each word, got {len(weights)} for {len(words)} words")
    scale = make_scale(weights, robust=robust)
    colours = ScalarMappable(Normalize(scale.low, scale.high), scale.colours)
    texts = [WHITESPACE.get(word, word) for word in words]
    widths = [measure_text(text) + PADDING for text in texts]
    positions = arrange_boxes(widths)
    across = max(left + width for (left, _), width in zip(positions, widths, strict=True))
    depth = (positions[-1][1] + 1) * (BOX_HEIGHT + 4)
    figure = Figure((max(across / 72, 3.0) + 1.7, max(depth / 72, 1.1) + 0.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, across), ylim=(depth, 0), aspect="equal", anchor="NW")
    axes.set_axis_off()
    for text, width, (left, line), weight in zip(texts, widths, positions, weights.tolist(), strict=True):
        colour, top = colours.to_rgba(weight), line * (BOX_HEIGHT + 4)
        axes.add_patch(Rectangle((left, top), width - 2, BOX_HEIGHT, facecolor=colour, edgecolor="grey", linewidth=0.5))
        ink = "white" if sum(colour[:3]) < 1.5 else "black"
        axes.text(
            left + width / 2 - 1,
            top + BOX_HEIGHT / 2,
            text,
            ha="center",
            va="center",
            size=FONT_SIZE,
            color=ink,
            parse_math=False,
        )
    add_colour_bar(figure, scale, axes, unit, aspect=12)
    add_caption(figure, caption, f"{unit} per token, {scale.description}")
    return figure


def measure_text(text: str) -> float:
    """Return the width of a text in points, as matplotlib draws it."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    with warnings.catch_warnings(action="ignore"):  # characters that the font lacks are boxes
        return TextPath((0, 0), text, size=FONT_SIZE, prop=FontProperties()).get_extents().width


def arrange_boxes(widths: Sequence[float]) -> list[tuple[float, int]]:
    """Return the left edge and the line of each box."""
    positions: list[tuple[float, int]] = []
    left, line = 0.0, 0
    for width in widths:
        if left and left + width > LINE_WIDTH:
            left, line = 0.0, line + 1
        positions.append((left, line))
        left += width
    return positions
