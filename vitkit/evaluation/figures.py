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


LARGEST = 30.0  # inches; what would be larger is drawn smaller, and letters below LEGIBLE points not at all


LEGIBLE = 3.0


def confusion(counts: Int64[Tensor, "C C"], names: Sequence[str], path: Path) -> None:
    """Counts of labels (rows) by predictions; the colour is the share of its row."""
    from matplotlib.figure import Figure  # half a second, and only now

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
        # A name is text, also where it holds $.
        letters = None if side == wanted else size
        axes.set_xticks(range(len(names)), names, rotation="vertical", parse_math=False, fontsize=letters)
        axes.set_yticks(range(len(names)), names, parse_math=False, fontsize=letters)
    axes.set(xlabel="predicted", ylabel="label")
    write_figure(figure, path)


def calibration(bins: Bins, error: float, path: Path) -> None:
    """Reliability diagram: the share of right predictions by confidence, above how many predictions there are."""
    from matplotlib.figure import Figure

    figure = Figure((5, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width, filled = 1 / BINS, bins.predictions > 0
    middles = [(place + 0.5) * width for place in range(BINS)]
    upper.plot([0, 1], [0, 1], color="grey", linestyle="dashed", label="as sure as right")
    upper.bar(middles, bins.accuracy.tolist(), width, color="C0", edgecolor="white", label="share that is right")
    upper.plot(bins.confidence[filled].tolist(), bins.accuracy[filled].tolist(), "o", color="C1", label="mean of a bin")
    upper.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="right", title=f"expected calibration error {error:.2%}")
    upper.legend(loc="upper left")
    lower.bar(middles, bins.predictions.tolist(), width, color="C0", edgecolor="white")
    lower.set(xlabel="confidence", ylabel="predictions", yscale="symlog")
    write_figure(figure, path)


def curve(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """The loss over the optimiser's steps, from the rows of metrics.csv; an empty cell is no point."""
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


def write_figure(figure: "Figure", path: Path) -> None:
    with warnings.catch_warnings(), replace_file(path) as beside:
        warnings.simplefilter("ignore")  # names in a script that the font lacks are drawn as boxes
        figure.savefig(beside, format="png", dpi=DPI)
