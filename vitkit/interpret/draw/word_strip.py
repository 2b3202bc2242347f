"""Texts as the tokens that a text tower reads, coloured by a number for each. S tokens."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from vitkit.data.tokenizer import Tokenizer
from vitkit.data.vocabularies.vocabulary import name_id
from vitkit.interpret.draw.panels import SHARE, add_caption, barred, scale_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE, HIGH, PADDING = 480.0, 22.0, 8.0  # points: of a line, of a box, of what is around a word
WORDS = 11  # points
MARKS = {"": "□", " ": "␣", "\n": "⏎", "\t": "⇥"}  # so that a box is never empty


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return each id as it reads by itself; bytes that are no character by themselves are U+FFFD."""
    vocabulary = tokenizer.vocabulary
    return [name_id(vocabulary, number) for number in ids]


def word_strip(
    words: Sequence[str],
    weights: Float[Tensor, " S"],
    *,
    caption: str = "",
    unit: str = SHARE,
    robust: bool = False,
) -> "Figure":
    """The tokens of a text as boxes, in lines as they are read, each in the colour of its number.

    Args: words: as `words_of` spells them. unit, robust: as of `map_figures.overlay`.
    Raises: ValueError for other than a number for each word.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if len(words) != len(weights) or not words:
        raise ValueError(f"weights must be one for each word, got {len(weights)} for {len(words)} words")
    scale = scale_of(weights, robust=robust)
    colours = ScalarMappable(Normalize(scale.low, scale.high), scale.colours)
    texts = [MARKS.get(word, word) for word in words]
    widths = [width_of(text) + PADDING for text in texts]
    places = in_lines(widths)
    across = max(left + width for (left, _), width in zip(places, widths, strict=True))
    depth = (places[-1][1] + 1) * (HIGH + 4)
    figure = Figure((max(across / 72, 3.0) + 1.7, max(depth / 72, 1.1) + 0.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, across), ylim=(depth, 0), aspect="equal", anchor="NW")
    axes.set_axis_off()
    for text, width, (left, line), number in zip(texts, widths, places, weights.tolist(), strict=True):
        colour, top = colours.to_rgba(number), line * (HIGH + 4)
        axes.add_patch(Rectangle((left, top), width - 2, HIGH, facecolor=colour, edgecolor="grey", linewidth=0.5))
        ink = "white" if sum(colour[:3]) < 1.5 else "black"
        axes.text(
            left + width / 2 - 1,
            top + HIGH / 2,
            text,
            ha="center",
            va="center",
            size=WORDS,
            color=ink,
            parse_math=False,
        )
    barred(figure, scale, axes, unit, aspect=12)
    add_caption(figure, caption, f"{unit} per token, {scale.told}")
    return figure


def width_of(text: str) -> float:
    """Points, as matplotlib draws it."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    with warnings.catch_warnings(action="ignore"):  # letters that the font lacks are boxes
        return TextPath((0, 0), text, size=WORDS, prop=FontProperties()).get_extents().width


def in_lines(widths: Sequence[float]) -> list[tuple[float, int]]:
    """Where each box begins, and in which line."""
    places: list[tuple[float, int]] = []
    left, line = 0.0, 0
    for width in widths:
        if left and left + width > WIDE:
            left, line = 0.0, line + 1
        places.append((left, line))
        left += width
    return places
