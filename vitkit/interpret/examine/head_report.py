"""What `vitkit heads` found, as a table, as files, and as pictures. H heads."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.data.omissions import Omissions
from vitkit.interpret.examine.image_model import AttentionModel
from vitkit.interpret.measure.ablation import Ablation
from vitkit.interpret.measure.comparison import Comparison
from vitkit.interpret.measure.moments import Summary
from vitkit.interpret.measure.statistics import Statistics, compute_patch_distances
from vitkit.support.files import replace_file, require_report_folder, write_json
from vitkit.support.output import open_output

REPORT = "heads.json"
FILES = ("heads.csv", "distance.png", "entropy.png", "sink.png", "effect.png", "positions.png")
WIDE = 10  # letters of a column
REST = "patches"  # what the prefix leaves of 1: not worth a column


class Heads(NamedTuple):
    """`numbers` say what was looked at; `flags` are sentences. Without removal, or another model, these are None."""

    numbers: dict[str, Any]
    statistics: Statistics
    ablation: Ablation | None
    comparison: Comparison | None
    flags: tuple[str, ...]
    examined: AttentionModel

    def to_dict(self) -> dict[str, Any]:
        """What heads.json holds."""
        return {
            **self.numbers,
            "flags": [*self.flags],
            "statistics": self.statistics.to_dict(),
            "ablation": None if self.ablation is None else self.ablation.to_dict(),
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
        }


def check_heads_folder(folder: Path) -> Path:
    """Raises: ValueError if there is anything in it but an earlier report."""
    return require_report_folder(folder, REPORT, FILES, "report")


def finish_heads(found: Heads, folder: Path, omissions: Omissions) -> int:
    """Write it, print what to read first, and tell by the exit status whether all pictures could be read."""
    omissions.unreadable += found.numbers["unreadable"]
    found.numbers.update(omissions.to_json())
    write(found, folder)
    with open_output(None) as screen:
        print(report(found), file=screen)
        print(f"{folder}/{REPORT} has these with their intervals, and beside it are a table and pictures", file=screen)
        screen.flush()
    return omissions.report(found.statistics.count + len(omissions.unreadable))


def write(found: Heads, folder: Path) -> None:
    """Replace what an earlier run left; heads.json comes last."""
    check_heads_folder(folder).mkdir(parents=True, exist_ok=True)
    names = {table(found, folder / "heads.csv"), *figures(found, folder)}
    for name in set(FILES) - names:
        (folder / name).unlink(missing_ok=True)
    write_json(folder / REPORT, found.to_dict(), allow_nan=False)


def table(found: Heads, path: Path) -> str:
    """A row for each head, with the ends of every interval."""
    columns: dict[str, tuple[Summary, ...]] = dict(found.statistics.measures)
    if found.ablation is not None:
        columns |= {f"removed_{name}": one for name, one in found.ablation.removed.items()}
        columns |= {f"random_map_{name}": one for name, one in found.ablation.random_map.items()}
    names = [f"{name}{end}" for name in columns for end in ("", "_low", "_high")]
    with replace_file(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["layer", "head", *names])
        for place, (layer, matrix) in enumerate(zip(found.statistics.layers, found.statistics.similarity, strict=True)):
            for head in range(len(matrix)):
                summaries = [one[place] for one in columns.values()]
                ends = [end[head].item() for one in summaries for end in (one.mean, one.low, one.high)]
                writer.writerow([layer, head, *(f"{value:.6g}" for value in ends)])
    return path.name


def figures(found: Heads, folder: Path) -> Iterator[str]:
    """The names of the pictures, each as soon as it is there."""
    from vitkit.interpret.draw import summary_figures
    from vitkit.interpret.draw.map_figures import save_figure
    from vitkit.interpret.maps.position_similarity import compute_position_similarity

    told, model = found.statistics, found.examined
    caption = f"{found.numbers['model']}, {told.count} pictures of {found.numbers['source']}"
    even = compute_patch_distances(told.layout).mean().item()
    reference = ("equal weights", even)
    drawn = {
        "distance.png": summary_figures.draw_distances(told.measures["distance"], caption=caption, reference=reference),
        "entropy.png": of_heads(told.measures["entropy"], "entropy in nats", caption),
        "sink.png": of_heads(told.measures["sink"], "largest share of one key", caption),
    }
    if found.ablation is not None:
        name = effect_of(found.ablation)
        without = f"{caption}; a removed head gathers {gathered(found)}"
        drawn["effect.png"] = of_heads(found.ablation.removed[name], f"change of {name}", without)
    try:
        similarity = compute_position_similarity(model.model, model.preprocess.size)
    except ValueError:  # no table of positions: nothing to draw
        pass
    else:
        drawn["positions.png"] = summary_figures.position_grid(similarity, caption=str(found.numbers["model"]))
    for name, figure in drawn.items():
        save_figure(figure, folder / name)
        yield name


def of_heads(summaries: tuple[Summary, ...], unit: str, caption: str) -> Any:
    from vitkit.interpret.draw.summary_figures import layers_by_heads

    return layers_by_heads([one.mean for one in summaries], unit=unit, caption=caption)


def gathered(found: Heads) -> str:
    """By a removed head."""
    return {"zero": "zeros", "mean": "its mean over these pictures"}[found.numbers["removed_is"]]


def effect_of(ablation: Ablation) -> str:
    return "probability" if "probability" in ablation.removed else "turn"


def report(found: Heads) -> str:
    """The numbers to read first, in lines."""
    numbers, told = found.numbers, found.statistics
    part = "" if numbers["fold"] is None else f", fold {numbers['fold']} of {numbers['folds']}"
    lines = [f"{told.count:,} of {numbers['drawn_from']:,} pictures of {numbers['source']}{part}"]
    if found.ablation is not None:
        lines += [numbers["labels"], f"a removed head gathers {gathered(found)}"]
    lines += rows(found)
    lines += [f"note: {flag}" for flag in found.flags]
    if found.comparison is not None:
        lines.append(f"changes from {numbers['against']}, the largest of each measure")
        changes = [change for change in found.comparison.most if change.measure != REST]
        lines += [f"  {change}" for change in changes] or ["  none that is more than chance"]
    return "\n".join(lines)


def rows(found: Heads) -> Iterator[str]:
    """A line for each head, and one for each layer about chance."""
    told, ablation = found.statistics, found.ablation
    names = [name for name in told.measures if name != REST]
    left = max(5, *(len(layer) for layer in told.layers))
    header = f"{'layer':<{left}} head" + "".join(f"{name:>{max(WIDE, len(name) + 1)}}" for name in names)
    if ablation is not None:
        effect = effect_of(ablation)
        header += f"   {f'change of {effect} (95 %)':<36}{'looking anywhere':>16}"
    yield header
    for place, (layer, matrix) in enumerate(zip(told.layers, told.similarity, strict=True)):
        for head in range(len(matrix)):
            line = f"{layer if head == 0 else '':<{left}} {head:>4}"
            line += "".join(f"{told.measures[name][place].mean[head]:>{max(WIDE, len(name) + 1)}.3f}" for name in names)
            if ablation is not None:
                effect = effect_of(ablation)
                interval = shown(ablation.removed[effect][place], head)
                line += f"   {interval:<36}{ablation.random_map[effect][place].mean[head]:>+16.4f}"
            yield line
        if ablation is not None and len(chance := ablation.random_columns[effect_of(ablation)][place].mean):
            yield f"{'':<{left}}      as many random columns removed: {chance.min():+.4f} to {chance.max():+.4f}"


def shown(summary: Summary, head: int) -> str:
    mean, low, high = (end[head].item() for end in (summary.mean, summary.low, summary.high))
    return f"{mean:+.4f} " + ("(of one picture)" if math.isnan(low) else f"({low:+.4f} to {high:+.4f})")
