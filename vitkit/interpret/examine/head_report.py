"""Report of `vitkit heads`: a table, JSON, CSV and figures. H heads."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.data.omissions import Omissions
from vitkit.data.sample_selection import format_selection
from vitkit.interpret.examine.image_model import AttentionModel
from vitkit.interpret.measure.ablation import Ablation
from vitkit.interpret.measure.comparison import Comparison
from vitkit.interpret.measure.effects import EFFECT_TITLES
from vitkit.interpret.measure.moments import Summary
from vitkit.interpret.measure.statistics import Statistics, compute_patch_distances
from vitkit.support.errors import format_count
from vitkit.support.files import fill_folder, remove_outdated, replace_file, write_json
from vitkit.support.output import open_output

REPORT = "heads.json"
FILES = ("heads.csv", "distance.png", "entropy.png", "sink.png", "effect.png", "positions.png")
COLUMN_WIDTH = 10
LEGEND = {
    "distance": "mean distance from a patch to the patches that it attends to, in patches",
    "entropy": "of the attention of a token, in nats; 0 is a single token",
    "diagonal": "share of attention of a token to itself",
    "sink": "share of attention to the token that gets most",
    "cls": "share of attention to CLS",
    "registers": "share of attention to register tokens",
    "distillation": "share of attention to the distillation token",
}
RANDOM_MAP = "random map: the same change if the head attends at random"
REMAINDER = "patches"  # 1 minus the shares of the prefix tokens: not worth a column


class HeadReport(NamedTuple):
    """Statistics of heads, with their ablation and the comparison with another model if any.

    `facts` describes the model, the source and the options; `flags` are warnings.
    """

    facts: dict[str, Any]
    statistics: Statistics
    ablation: Ablation | None
    comparison: Comparison | None
    flags: tuple[str, ...]
    model: AttentionModel

    def to_dict(self) -> dict[str, Any]:
        """Return the content of heads.json."""
        return {
            **self.facts,
            "flags": [*self.flags],
            "statistics": self.statistics.to_dict(),
            "ablation": None if self.ablation is None else self.ablation.to_dict(),
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
        }


def finish_head_report(report: HeadReport, folder: Path, omissions: Omissions) -> int:
    """Write and print the report; return the exit status, 1 for pictures that could not be read."""
    omissions.unreadable += report.facts["unreadable"]
    report.facts.update(omissions.to_json())
    write_head_report(report, folder)
    with open_output(None) as screen:
        print(format_head_report(report), file=screen)
        print(f"{folder}/{REPORT} has all values with their intervals; a table and figures are beside it", file=screen)
        screen.flush()
    return omissions.report(report.statistics.count + len(omissions.unreadable))


def write_head_report(report: HeadReport, folder: Path) -> None:
    """Write all files, heads.json last, and remove those of an earlier report."""
    with fill_folder(folder):
        names = {write_head_table(report, folder / "heads.csv"), *save_figures(report, folder)}
        remove_outdated(folder, REPORT, set(FILES) - names)
        write_json(folder / REPORT, report.to_dict(), allow_nan=False)


def write_head_table(report: HeadReport, path: Path) -> str:
    """Write a row for each head, with the ends of every interval; return the file's name."""
    columns: dict[str, tuple[Summary, ...]] = dict(report.statistics.measures)
    if report.ablation is not None:
        columns |= {f"removed_{name}": summaries for name, summaries in report.ablation.removed.items()}
        columns |= {f"random_map_{name}": summaries for name, summaries in report.ablation.random_map.items()}
    names = [f"{name}{end}" for name in columns for end in ("", "_low", "_high")]
    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["layer", "head", *names])
        for index, (layer, matrix) in enumerate(
            zip(report.statistics.layers, report.statistics.similarity, strict=True)
        ):
            for head in range(len(matrix)):
                cells = [column[index] for column in columns.values()]
                values = [value[head].item() for cell in cells for value in (cell.mean, cell.low, cell.high)]
                writer.writerow([layer, head, *(f"{value:.6g}" for value in values)])
    return path.name


def save_figures(report: HeadReport, folder: Path) -> Iterator[str]:
    """Save the figures and yield the name of each."""
    from vitkit.interpret.draw import summary_figures
    from vitkit.interpret.draw.map_figures import save_figure
    from vitkit.interpret.maps.position_similarity import compute_position_similarity

    statistics, facts = report.statistics, report.facts
    caption = f"{facts['model']}, {format_count(statistics.count, 'images')} of {facts['source']}"
    reference = ("uniform attention", compute_patch_distances(statistics.layout).mean().item())
    figures = {
        "distance.png": summary_figures.draw_distances(
            statistics.measures["distance"], caption=caption, reference=reference
        ),
        "entropy.png": draw_means(statistics.measures["entropy"], "attention entropy in nats", caption),
        "sink.png": draw_means(statistics.measures["sink"], "attention sink: largest share of one key", caption),
    }
    if report.ablation is not None:
        effect = report.ablation.main_effect
        title = f"head ablation: {format_effect(effect)}"
        caption = f"{caption}; {format_replacement(report)}"
        figures["effect.png"] = draw_means(report.ablation.removed[effect], title, caption)
    try:
        similarity = compute_position_similarity(report.model.model, report.model.preprocess.size)
    except ValueError:  # the model has no position embeddings
        pass
    else:
        figures["positions.png"] = summary_figures.draw_position_similarity(similarity, caption=str(facts["model"]))
    for name, figure in figures.items():
        save_figure(figure, folder / name)
        yield name


def draw_means(summaries: tuple[Summary, ...], unit: str, caption: str) -> Any:
    from vitkit.interpret.draw.summary_figures import draw_head_values

    return draw_head_values([summary.mean for summary in summaries], unit=unit, caption=caption)


def format_replacement(report: HeadReport) -> str:
    value = {"zero": "zeros", "mean": "its mean over these images"}[report.facts["removed_is"]]
    return f"the output of an ablated head is replaced by {value}"


def format_effect(effect: str) -> str:
    """Return the title of an effect: embeddings have a distance, probabilities a change."""
    return EFFECT_TITLES[effect] if effect == "turn" else f"change of {EFFECT_TITLES[effect]}"


def format_head_report(report: HeadReport) -> str:
    """Return the main values as lines of text."""
    facts, statistics = report.facts, report.statistics
    fold = "" if facts["fold"] is None else f", fold {facts['fold']} of {facts['folds']}"
    lines = [f"{statistics.count:,} of {format_count(facts['drawn_from'], 'images')} of {facts['source']}{fold}"]
    lines += format_selection({**facts, "pictures": statistics.count})
    if report.ablation is not None:
        lines += [facts["labels"], format_replacement(report)]
    lines += format_head_rows(report)
    lines += (f"{name}: {LEGEND[name]}" for name in statistics.measures if name in LEGEND)
    lines += [RANDOM_MAP] if report.ablation is not None else []
    lines += [f"note: {flag}" for flag in report.flags]
    if report.comparison is not None:
        lines.append(f"largest changes of each measure, compared with {facts['against']}")
        changes = [change for change in report.comparison.most if change.measure != REMAINDER]
        lines += [f"  {change}" for change in changes] or ["  no significant change"]
    return "\n".join(lines)


def format_head_rows(report: HeadReport) -> Iterator[str]:
    """Yield a line for each head, and the random baseline of each layer."""
    statistics, ablation = report.statistics, report.ablation
    names = [name for name in statistics.measures if name != REMAINDER]
    left = max(5, *(len(layer) for layer in statistics.layers))
    header = f"{'layer':<{left}} head" + "".join(f"{name:>{max(COLUMN_WIDTH, len(name) + 1)}}" for name in names)
    if ablation is not None:
        header += f"   {f'{format_effect(ablation.main_effect)} (95 %)':<36}{'random map':>16}"
    yield header
    for index, (layer, matrix) in enumerate(zip(statistics.layers, statistics.similarity, strict=True)):
        for head in range(len(matrix)):
            line = f"{layer if head == 0 else '':<{left}} {head:>4}"
            for name in names:
                line += f"{statistics.measures[name][index].mean[head]:>{max(COLUMN_WIDTH, len(name) + 1)}.3f}"
            if ablation is not None:
                interval = format_interval(ablation.removed[ablation.main_effect][index], head)
                random_map = ablation.random_map[ablation.main_effect][index].mean[head]
                line += f"   {interval:<36}{random_map:>+16.4f}"
            yield line
        if ablation is not None and len(chance := ablation.random_columns[ablation.main_effect][index].mean):
            yield f"{'':<{left}}      as many random columns ablated: {chance.min():+.4f} to {chance.max():+.4f}"


def format_interval(summary: Summary, head: int) -> str:
    mean, low, high = (value[head].item() for value in (summary.mean, summary.low, summary.high))
    return f"{mean:+.4f} " + ("(of one image)" if math.isnan(low) else f"({low:+.4f} to {high:+.4f})")
