"""Numbers about all layers and heads, or all places, in one figure.

L layers, H heads, h w patches down and across.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.interpret.draw.panels import LETTERS, Scale, add_caption, barred, scale_of
from vitkit.interpret.measure.moments import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WRITTEN = 200  # cells at most that hold their numbers
SIMILAR = Scale("RdBu_r", -1.0, 1.0, False, "from -1 to 1")


def layers_by_heads(
    values: Sequence[Float[Tensor, " _"]], *, unit: str, caption: str = "", layers: Sequence[str] = ()
) -> "Figure":
    """A cell for each head of each layer, the first layer at the bottom, as in figures of networks.

    Args:
        values: of any measure, (H,) for each layer, which may differ in heads; signed ones have 0 in the middle.
        layers: their names (default: their places).
    """
    from matplotlib.figure import Figure

    names = named(layers, len(values))
    heads = max(len(row) for row in values)
    table = torch.full((len(values), heads), torch.nan)
    for row, numbers in zip(table, values, strict=True):
        row[: len(numbers)] = numbers.detach().float().cpu()
    figure = Figure((1.8 + 0.5 * heads, 1.1 + 0.32 * max(len(values), 3)), layout="constrained")
    axes, scale = figure.subplots(), scale_of(table)
    drawn = axes.imshow(
        table.numpy(), cmap=scale.colours, vmin=scale.low, vmax=scale.high, origin="lower", aspect="auto"
    )
    axes.set_xticks(range(heads), [str(head) for head in range(heads)], fontsize=LETTERS)
    axes.set_yticks(range(len(values)), names, fontsize=LETTERS, parse_math=False)
    axes.set_xlabel("head", fontsize=LETTERS)
    axes.set_ylabel("layer", fontsize=LETTERS)
    if table.numel() <= WRITTEN:
        numbers, digits = table.tolist(), decimals(scale.high)
        for row, column in table.isfinite().nonzero().tolist():
            number = numbers[row][column]
            dark = sum(drawn.to_rgba(number)[:3]) < 1.5
            text = f"{number:.{digits}f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    barred(figure, scale, axes, unit)
    add_caption(figure, caption, f"{unit}, {scale.told}")
    return figure


def decimals(largest: float) -> int:
    """So many that the largest has two digits that count, or a few more; four fit into a cell."""
    return 1 if largest >= 10 else min(max(1 - math.floor(math.log10(largest)), 2), 4)


def draw_distances(
    summaries: Sequence[Summary],
    *,
    unit: str = "mean attention distance in patches",
    caption: str = "",
    layers: Sequence[str] = (),
    reference: tuple[str, float] | None = None,
) -> "Figure":
    """Heads as points over the layers with the interval of each, as figure 7 of https://arxiv.org/abs/2010.11929.

    Args:
        summaries: of distance or any other measure, one for each layer.
        reference: a line to compare with, and what it is, such as ("uniform attention", 7.28).
    """
    from matplotlib.figure import Figure

    names = named(layers, len(summaries))
    figure = Figure((max(4.5, 1.5 + 0.45 * len(summaries)), 3.3), layout="constrained")
    axes = figure.subplots()
    for place, summary in enumerate(summaries):
        mean, low, high = (values.float().cpu().numpy() for values in (summary.mean, summary.low, summary.high))
        across = place + (np.linspace(-0.25, 0.25, len(mean)) if len(mean) > 1 else np.zeros(1))
        known = np.isfinite(low)  # not of one picture
        axes.vlines(across[known], low[known], high[known], color="#0072b2", alpha=0.5, linewidth=1.5)
        axes.plot(across, mean, ".", color="#0072b2", markersize=6, label=None if place else "a head")
    means = [summary.mean.float().nanmean().item() for summary in summaries]
    axes.plot(range(len(means)), means, color="black", linewidth=1, label="mean of the heads")
    if reference is not None:
        axes.axhline(reference[1], color="#d55e00", linestyle="dashed", linewidth=1, label=reference[0])
    axes.set_xticks(range(len(names)), names, fontsize=LETTERS, parse_math=False)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("layer", fontsize=LETTERS)
    axes.set_ylabel(unit, fontsize=LETTERS, parse_math=False)
    axes.tick_params(labelsize=LETTERS)
    figure.legend(fontsize=LETTERS, loc="outside upper left", ncols=3, frameon=False)
    add_caption(figure, caption, "points: heads, from the first on the left; lines: where the mean lies with 95 %")
    return figure


def position_grid(similarity: Float[Tensor, "h w h w"], *, caption: str = "") -> "Figure":
    """For each place a small map of how alike all places are to it, as figure 7 of https://arxiv.org/abs/2010.11929."""
    from matplotlib.figure import Figure

    rows, columns = similarity.shape[:2]
    gap = 1 if max(rows, columns) < 20 else 2  # cells between maps
    tiles = torch.full((rows, columns, rows + gap, columns + gap), torch.nan)
    tiles[:, :, :rows, :columns] = similarity.detach().float().cpu()
    whole = tiles.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)[:-gap, :-gap]
    side = 5.5 / max(rows, columns)
    figure = Figure((max(columns * side, 2.5) + 1.3, max(rows * side, 1.5) + 0.5), layout="constrained")
    axes = figure.subplots()
    # Of a long grid the whole is as long again: with square cells it would be a hair.
    aspect = "equal" if max(rows, columns) <= 2 * min(rows, columns) else "auto"
    axes.imshow(whole.numpy(), cmap=SIMILAR.colours, vmin=-1, vmax=1, interpolation="nearest", aspect=aspect)
    numbered(axes, rows, columns, gap)
    barred(figure, SIMILAR, axes, "cosine similarity")
    add_caption(figure, caption, "each small map: the place that it belongs to, compared with all places")
    return figure


def numbered(axes: "Axes", rows: int, columns: int, gap: int) -> None:
    """Rows and columns of the maps, not all where there are many."""
    step = max(1, max(rows, columns) // 12)
    shown_rows, shown_columns = range(0, rows, step), range(0, columns, step)
    middles = [
        [place * (side + gap) + (side - 1) / 2 for place in places]
        for side, places in (
            (rows, shown_rows),
            (columns, shown_columns),
        )
    ]
    axes.set_yticks(middles[0], [str(row) for row in shown_rows], fontsize=LETTERS)
    axes.set_xticks(middles[1], [str(column) for column in shown_columns], fontsize=LETTERS)
    axes.set_xlabel("column of patches", fontsize=LETTERS)
    axes.set_ylabel("row of patches", fontsize=LETTERS)
    axes.spines[:].set_visible(False)


def named(layers: Sequence[str], count: int) -> list[str]:
    """Raises: ValueError for other than a name for each."""
    names = [*layers] or [str(place) for place in range(count)]
    if len(names) != count:
        raise ValueError(f"layers must be named one by one, got {len(names)} names for {count}")
    return names
