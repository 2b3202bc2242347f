"""Figures that summarise all layers and heads, or all positions.

L layers, H heads, h w patches down and across.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.interpret.draw.panels import FONT_SIZE, Scale, add_caption, add_colour_bar, make_scale
from vitkit.interpret.measure.moments import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 200  # cells with their values written in
SIMILARITY_SCALE = Scale("RdBu_r", -1.0, 1.0, False, "from -1 to 1")


def draw_head_values(
    values: Sequence[Float[Tensor, " _"]], *, unit: str, caption: str = "", layers: Sequence[str] = ()
) -> "Figure":
    """Draw a heat map with a cell for each head of each layer, the first layer at the top as in tables.

    Args:
        values: of any measure, (H,) for each layer, whose numbers of heads may differ; a signed scale is symmetric,
            with losses in red as on the page of `vitkit explain`.
        layers: their names (default: their indices).
    """
    from matplotlib.figure import Figure

    names = name_layers(layers, len(values))
    heads = max(len(row) for row in values)
    table = torch.full((len(values), heads), torch.nan)
    for row, numbers in zip(table, values, strict=True):
        row[: len(numbers)] = numbers.detach().float().cpu()
    figure = Figure((1.8 + 0.5 * heads, 1.1 + 0.32 * max(len(values), 3)), layout="constrained")
    axes, scale = figure.subplots(), make_scale(table)
    if scale.low < 0:
        scale = scale._replace(colours="RdBu")
    image = axes.imshow(table.numpy(), cmap=scale.colours, vmin=scale.low, vmax=scale.high, aspect="auto")
    axes.set_xticks(range(heads), [str(head) for head in range(heads)], fontsize=FONT_SIZE)
    axes.set_yticks(range(len(values)), names, fontsize=FONT_SIZE, parse_math=False)
    axes.set_xlabel("head", fontsize=FONT_SIZE)
    axes.set_ylabel("layer", fontsize=FONT_SIZE)
    if table.numel() <= MAX_LABELS:
        numbers, digits = table.tolist(), count_decimals(scale.high)
        for row, column in table.isfinite().nonzero().tolist():
            number = numbers[row][column]
            dark = sum(image.to_rgba(number)[:3]) < 1.5
            text = f"{number:.{digits}f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    add_colour_bar(figure, scale, axes, unit)
    add_caption(figure, caption, f"{unit}, {scale.description}")
    return figure


def count_decimals(largest: float) -> int:
    """Return the decimals that give the largest value two significant digits or more; four fit into a cell."""
    return 1 if largest >= 10 else min(max(1 - math.floor(math.log10(largest)), 2), 4)


def draw_distances(
    summaries: Sequence[Summary],
    *,
    unit: str = "mean attention distance in patches",
    caption: str = "",
    layers: Sequence[str] = (),
    reference: tuple[str, float] | None = None,
) -> "Figure":
    """Draw heads as points over the layers with their intervals, as figure 7 of https://arxiv.org/abs/2010.11929.

    Args:
        summaries: of the distance or any other measure, one for each layer.
        reference: label and value of a reference line, such as ("uniform attention", 7.28).
    """
    from matplotlib.figure import Figure

    names = name_layers(layers, len(summaries))
    figure = Figure((max(4.5, 1.5 + 0.45 * len(summaries)), 3.3), layout="constrained")
    axes = figure.subplots()
    for layer, summary in enumerate(summaries):
        mean, low, high = (values.float().cpu().numpy() for values in (summary.mean, summary.low, summary.high))
        across = layer + (np.linspace(-0.25, 0.25, len(mean)) if len(mean) > 1 else np.zeros(1))
        known = np.isfinite(low)  # there is none for a single image
        axes.vlines(across[known], low[known], high[known], color="#0072b2", alpha=0.5, linewidth=1.5)
        axes.plot(across, mean, ".", color="#0072b2", markersize=6, label=None if layer else "head")
    means = [summary.mean.float().nanmean().item() for summary in summaries]
    axes.plot(range(len(means)), means, color="black", linewidth=1, label="mean over heads")
    if reference is not None:
        axes.axhline(reference[1], color="#d55e00", linestyle="dashed", linewidth=1, label=reference[0])
    axes.set_xticks(range(len(names)), names, fontsize=FONT_SIZE, parse_math=False)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("layer", fontsize=FONT_SIZE)
    axes.set_ylabel(unit, fontsize=FONT_SIZE, parse_math=False)
    axes.tick_params(labelsize=FONT_SIZE)
    figure.legend(fontsize=FONT_SIZE, loc="outside upper left", ncols=3, frameon=False)
    add_caption(figure, caption, "points: heads, from left to right; lines: 95 % confidence intervals of the mean")
    return figure


def draw_position_similarity(similarity: Float[Tensor, "h w h w"], *, caption: str = "") -> "Figure":
    """Draw a small map for each position: its similarity to the others (figure 7, https://arxiv.org/abs/2010.11929)."""
    from matplotlib.figure import Figure

    rows, columns = similarity.shape[:2]
    gap = 1 if max(rows, columns) < 20 else 2  # cells between maps
    tiles = torch.full((rows, columns, rows + gap, columns + gap), torch.nan)
    tiles[:, :, :rows, :columns] = similarity.detach().float().cpu()
    whole = tiles.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)[:-gap, :-gap]
    side = 5.5 / max(rows, columns)
    figure = Figure((max(columns * side, 2.5) + 1.3, max(rows * side, 1.5) + 0.5), layout="constrained")
    axes = figure.subplots()
    # With square cells the figure of a long grid would be far too narrow.
    aspect = "equal" if max(rows, columns) <= 2 * min(rows, columns) else "auto"
    axes.imshow(whole.numpy(), cmap=SIMILARITY_SCALE.colours, vmin=-1, vmax=1, interpolation="nearest", aspect=aspect)
    label_grid(axes, rows, columns, gap)
    add_colour_bar(figure, SIMILARITY_SCALE, axes, "cosine similarity")
    add_caption(figure, caption, "each small map: similarity of its position's embedding to those of all positions")
    return figure


def label_grid(axes: "Axes", rows: int, columns: int, gap: int) -> None:
    """Label rows and columns of the maps, only some if there are many."""
    step = max(1, max(rows, columns) // 12)
    shown_rows, shown_columns = range(0, rows, step), range(0, columns, step)
    middles = [
        [index * (length + gap) + (length - 1) / 2 for index in indices]
        for length, indices in ((rows, shown_rows), (columns, shown_columns))
    ]
    axes.set_yticks(middles[0], [str(row) for row in shown_rows], fontsize=FONT_SIZE)
    axes.set_xticks(middles[1], [str(column) for column in shown_columns], fontsize=FONT_SIZE)
    axes.set_xlabel("column of patches", fontsize=FONT_SIZE)
    axes.set_ylabel("row of patches", fontsize=FONT_SIZE)
    axes.spines[:].set_visible(False)


def name_layers(layers: Sequence[str], count: int) -> list[str]:
    """Return the names of layers, by default their indices. Raises: ValueError for another number of names."""
    names = [*layers] or [str(index) for index in range(count)]
    if len(names) != count:
        raise ValueError(f"layers must have one name each, got {len(names)} names for {count}")
    return names
