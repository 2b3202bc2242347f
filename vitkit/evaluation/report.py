"""The report of an evaluation: a printed table, and files in a folder. N readable images, K classes."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vitkit.data.omissions import Omissions
from vitkit.data.preprocess import Preprocess
from vitkit.data.sample_selection import format_selection
from vitkit.data.sources.source import Source
from vitkit.evaluation import figures, metrics
from vitkit.evaluation.explained_variance import TRUE_STATISTICS
from vitkit.support import contact_sheet
from vitkit.support.errors import format_count
from vitkit.support.files import fill_folder, remove_outdated, write_json
from vitkit.support.output import open_output

LABEL_FILES = (
    "calibration.png",
    "confusion.csv",
    "confusion.png",
    "mistakes.csv",
    "mistakes.png",
    "per_class.csv",
)
CAPTION_FILES = ("captions.csv", "captions.png", "pictures.csv", "pictures.png")
FILES = (*LABEL_FILES, *CAPTION_FILES, "positions.png")
REPORT = "report.json"
SHOWN = 24  # mistakes in the contact sheet


class Evaluation(NamedTuple):
    """The result of an evaluation.

    Args:
        numbers: the content of report.json.
        logits: without columns for a model without classes.
        labels: indices into `classes`, or the rows of a multilabel matrix.
        indices: of the images in the source.
        classes: of the model, else of the samples that probes are fitted to.
    """

    numbers: dict[str, Any]
    logits: Float[Tensor, "N K"]
    labels: Int64[Tensor, " N"] | Bool[Tensor, "N K"]
    indices: Int64[Tensor, " N"]
    source: Source
    preprocess: Preprocess
    classes: tuple[str, ...]


class Mistake(NamedTuple):
    """An image whose predicted class is not its label; `sample` is its index in the source."""

    sample: int
    label: int
    predicted: int
    confidence: float


def finish_evaluation(evaluation: Evaluation, folder: Path) -> int:
    """Write the report, print its summary, and return the exit status, which is 0 if all images were readable."""
    omissions = add_omissions(evaluation.numbers, evaluation.source)
    replace_report(folder, evaluation.numbers, write_evaluation_files(evaluation, folder))
    print(format_evaluation(evaluation.numbers))
    return print_outcome(folder, "per_class" in evaluation.numbers, omissions, evaluation.numbers["pictures"])


def add_omissions(numbers: dict[str, Any], source: Source) -> Omissions:
    """Add the omissions of a source to the numbers of its evaluation, and return them."""
    omissions = Omissions()
    omissions.update(source.omissions)
    omissions.unreadable += numbers["unreadable"]
    numbers.update(omissions.to_json())
    return omissions


def print_outcome(folder: Path, more: bool, omissions: Omissions, count: int) -> int:
    """Print where the report is and what was omitted, and return the exit status.

    Args: more: whether there are other files. count: readable images.
    """
    print(f"{folder}/report.json has all numbers{'; tables and figures are beside it' if more else ''}")
    return omissions.report(count + len(omissions.unreadable), more=", and do not count")


def replace_report(folder: Path, numbers: Mapping[str, Any], files: Iterable[str]) -> None:
    """Write an evaluation, report.json last, or replace one. Args: files: yields the name of each file written."""
    with fill_folder(folder):
        written = set(files)
        remove_outdated(folder, REPORT, set(FILES) - written)
        write_json(folder / REPORT, numbers)


def write_evaluation_files(evaluation: Evaluation, folder: Path) -> Iterator[str]:
    """Write tables and figures, and yield the name of each when it is written."""
    numbers, logits, labels, _, source, _, classes = evaluation
    if not (rows := numbers.get("per_class")):
        return
    yield write_csv(folder / "per_class.csv", rows[0], (row.values() for row in rows))
    if numbers["several_labels"]:
        return
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    counts = metrics.count_confusion(logits, labels)
    lines = ([name, *row] for name, row in zip(classes, counts.tolist(), strict=True))
    yield write_csv(folder / "confusion.csv", ["label", *classes], lines)
    figures.draw_confusion(counts, classes, folder / "confusion.png")
    yield "confusion.png"
    bins = metrics.compute_reliability(confidence, predicted == labels)
    figures.draw_calibration(bins, numbers["expected_calibration_error"], folder / "calibration.png")
    yield "calibration.png"
    mistakes = find_mistakes(evaluation)
    lines = (
        [source.get_name(sample), classes[label], classes[predicted], f"{confidence:.6g}"]
        for sample, label, predicted, confidence in mistakes
    )
    yield write_csv(folder / "mistakes.csv", ["name", "label", "predicted", "confidence"], lines)
    if mistakes:
        tiles = [make_tile(evaluation, mistake) for mistake in mistakes[:SHOWN]]
        contact_sheet.save_contact_sheet(tiles, folder / "mistakes.png")
        yield "mistakes.png"


def find_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """Return the wrong predictions, sorted by decreasing confidence."""
    confidence, predicted = evaluation.logits.softmax(dim=1).max(dim=1)
    columns = evaluation.indices, evaluation.labels, predicted, confidence
    rows = [Mistake(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return sorted((row for row in rows if row.label != row.predicted), key=lambda row: (-row.confidence, row.sample))


def make_tile(evaluation: Evaluation, mistake: Mistake) -> contact_sheet.Tile:
    classes, source = evaluation.classes, evaluation.source
    picture = evaluation.preprocess.convert(source.read_image(mistake.sample, (contact_sheet.TILE, contact_sheet.TILE)))
    line = f"{classes[mistake.label]} → {classes[mistake.predicted]} {mistake.confidence:.0%}"
    return contact_sheet.Tile(picture, (line, Path(source.get_name(mistake.sample)).name))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    with open_output(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path.name


def list_class_rows(
    scores: metrics.ClassScores, classes: Sequence[str], precisions: Tensor | None
) -> list[dict[str, Any]]:
    """Return the scores as a row for each class. Args: precisions: average precisions, for multilabel."""
    columns: dict[str, list[float]] = {name: column.tolist() for name, column in scores._asdict().items()}
    if precisions is not None:
        columns["average_precision"] = precisions.tolist()
    return [
        {"class": name, **{key: column[row] for key, column in columns.items()}} for row, name in enumerate(classes)
    ]


def format_evaluation(numbers: Mapping[str, Any]) -> str:
    """Return the summary of an evaluation as lines of text."""
    part = "" if numbers["fold"] is None else f", fold {numbers['fold']} of {numbers['folds']}"
    lines = [f"{format_count(numbers['pictures'], 'pictures')} of {numbers['source']}{part}"]
    lines += format_selection(numbers)
    scores: dict[str, float] = {}
    if "explained_variance" in numbers:
        lines += [
            f"{'explained variance of hidden patches':<40}{numbers['explained_variance']:>8.2%}",
            f"{'squared error of hidden patches':<40}{numbers['loss']:>8.4f}",
            f"{'  of the mean of each patch (baseline)':<40}{numbers['mean_of_patches']:>8.4f}",
            *([f"({TRUE_STATISTICS})"] if numbers["norm_pix"] else []),
        ]
    if "per_class" not in numbers:
        lines += ["the model has no classes; accuracy of probes on its frozen features:"] if "probes" in numbers else []
    elif numbers["several_labels"]:
        scores = {
            "mean average precision": numbers["mean_average_precision"],
            "  of class frequencies": numbers["baselines"]["class frequencies"],
            "macro F1": numbers["macro_f1"],
            "micro F1": numbers["micro_f1"],
            "exact match": numbers["exact_match"],
        }
    else:
        scores = {"top-1 accuracy": numbers["top1"], **numbers.get("baselines", {})}
        scores |= {"top-5 accuracy": numbers["top5"]} if "top5" in numbers else {}
        for name in metrics.COLUMNS:
            scores[f"macro {name}"] = numbers[f"macro_{name}"]
            baselines = numbers.get(f"baselines_macro_{name}", {})
            scores |= {f"  {baseline}": value for baseline, value in baselines.items()}
        scores |= {"mean confidence": numbers["mean_confidence"]}
        scores |= {"expected calibration error": numbers["expected_calibration_error"]}
    lines += [f"{name:<30}{value:>8.2%}" for name, value in scores.items()]
    if "negative_log_likelihood" in numbers:
        lines.append(f"{'negative log likelihood':<30}{numbers['negative_log_likelihood']:>8.4f}")
    if probes := numbers.get("probes"):
        probes = probes if "per_class" in numbers else {**probes, **numbers["baselines"]}
        lines.append(f"accuracy of probes, {numbers['probes_are']}")
        width = max(28, *(len(name) + 2 for name in probes))
        lines += [f"  {name:<{width}}{value:>8.2%}" for name, value in probes.items()]
    return "\n".join([*lines, *numbers.get("worse_than_baselines", ())])
