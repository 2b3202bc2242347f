"""Figures of an evaluation and of a run: confusion matrix, reliability diagram, curves. C classes."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Int64
from torch import Tensor

from vitkit.evaluation.metrics import BINS, Bins
from vitkit.support.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DPI = 120
LARGEST = 30.0  # inches; a larger figure is scaled down, and text below LEGIBLE points is left out
LEGIBLE = 3.0


def draw_confusion(counts: Int64[Tensor, "C C"], names: Sequence[str], path: Path) -> None:
    """Draw a confusion matrix: counts of labels (rows) by predictions, coloured by the share of the row."""
    from matplotlib.figure import Figure  # takes half a second to import

    wanted = 2.5 + 0.4 * len(names)  # inches
    side = min(wanted, LARGEST)
    figure = Figure((side, side), layout="constrained")
    axes = figure.subplots()
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    size = 8 * side / wanted
    if size >= LEGIBLE:
        for row, column in counts.nonzero().tolist():
            colour = "white" if shares[row, column] > 0.5 else "black"
            number = str(counts[row, column].item())
            axes.text(column, row, number, ha="center", va="center", color=colour, fontsize=size)
        # A name may hold $, which would be parsed as mathematics.
        letters = None if side == wanted else size
        axes.set_xticks(range(len(names)), names, rotation="vertical", parse_math=False, fontsize=letters)
        axes.set_yticks(range(len(names)), names, parse_math=False, fontsize=letters)
    axes.set(xlabel="predicted", ylabel="label")
    write_figure(figure, path)


def draw_calibration(bins: Bins, error: float, path: Path) -> None:
    """Draw a reliability diagram: accuracy by confidence, above the number of predictions."""
    from matplotlib.figure import Figure

    figure = Figure((5, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width, filled = 1 / BINS, bins.predictions > 0
    middles = [(place + 0.5) * width for place in range(BINS)]
    upper.plot([0, 1], [0, 1], color="grey", linestyle="dashed", label="perfect calibration")
    upper.bar(middles, bins.accuracy.tolist(), width, color="C0", edgecolor="white", label="accuracy")
    upper.plot(
        bins.confidence[filled].tolist(),
        bins.accuracy[filled].tolist(),
        "o",
        color="C1",
        label="mean confidence",
    )
    upper.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy", title=f"expected calibration error {error:.2%}")
    upper.legend(loc="upper left")
    lower.bar(middles, bins.predictions.tolist(), width, color="C0", edgecolor="white")
    lower.set(xlabel="confidence", ylabel="predictions", yscale="symlog")
    write_figure(figure, path)


def draw_loss_curve(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Draw the loss over optimiser steps, from the rows of metrics.csv. An empty cell is no point."""
    from matplotlib.figure import Figure

    figure = Figure((6, 4), layout="constrained")
    axes = figure.subplots()
    for name, marker in (("train/loss", ""), ("val/loss", ".")):
        if points := [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]:
            axes.plot(*zip(*points, strict=True), label=name, marker=marker)
    axes.set(xlabel="optimiser step", ylabel="loss")
    if axes.lines:
        axes.legend()
    write_figure(figure, path)


def draw_positions(bits: Sequence[float], path: Path) -> None:
    """Draw the loss of an id, in bits, by the number of ids before it."""
    from matplotlib.figure import Figure

    figure = Figure((6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(len(bits)), bits)
    axes.set(xlabel="position in the context", ylabel="bits for an id")
    axes.set_ylim(bottom=0)
    write_figure(figure, path)


def write_figure(figure: "Figure", path: Path) -> None:
    with warnings.catch_warnings(), replace_file(path) as temporary:
        warnings.simplefilter("ignore")  # glyphs that the font lacks are drawn as boxes
        figure.savefig(temporary, format="png", dpi=DPI)
