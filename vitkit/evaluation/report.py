"""What an evaluation found, as a table, as files, and as pictures. Letters: N pictures read, K classes."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vitkit.data.omissions import Omissions
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Source
from vitkit.evaluation import figures, metrics
from vitkit.support import contact_sheet
from vitkit.support.files import replace_file, require_report_folder, write_json

LABELLED = ("calibration.png", "confusion.csv", "confusion.png", "mistakes.csv", "mistakes.png", "per_class.csv")
CAPTIONED = ("captions.csv", "captions.png", "pictures.csv", "pictures.png")
ALL = (*LABELLED, *CAPTIONED)
REPORT = "report.json"
SHOWN = 24  # mistakes in the contact sheet


class Evaluation(NamedTuple):
    """`numbers` is what report.json holds; `indices` are the pictures' places in the source.

    Of a model without classes K is 0, and the labels are places among the classes of what probes are fitted to.
    """

    numbers: dict[str, Any]
    logits: Float[Tensor, "N K"]
    labels: Int64[Tensor, " N"] | Bool[Tensor, "N K"]
    indices: Int64[Tensor, " N"]
    source: Source
    preprocess: Preprocess
    classes: tuple[str, ...]


class Mistake(NamedTuple):
    """A picture taken for another class; `sample` is its place in the source."""

    sample: int
    label: int
    predicted: int
    confidence: float


def check_evaluation_folder(folder: Path) -> Path:
    """Raises: ValueError if there is anything in it but an earlier evaluation."""
    return require_report_folder(folder, REPORT, ALL, "evaluation")


def finish_evaluation(evaluation: Evaluation, folder: Path) -> int:
    """Write it, print what to read first, and tell by the exit status whether all pictures could be read."""
    omissions = add_omissions(evaluation.numbers, evaluation.source)
    write(evaluation, folder)
    print(report(evaluation.numbers))
    return print_outcome(folder, "per_class" in evaluation.numbers, omissions, evaluation.numbers["pictures"])


def add_omissions(numbers: dict[str, Any], source: Source) -> Omissions:
    """Add what was left out of a source to the numbers of its evaluation, and return it."""
    omissions = Omissions()
    omissions.update(source.omissions)
    omissions.unreadable += numbers["unreadable"]
    numbers.update(omissions.to_json())
    return omissions


def print_outcome(folder: Path, more: bool, omissions: Omissions, count: int) -> int:
    """Args: more: whether there are other files. count: pictures that could be read."""
    print(f"{folder}/report.json has these{', and beside it are tables and pictures' if more else ''}")
    return omissions.report(count + len(omissions.unreadable), more=", and do not count")


def write(evaluation: Evaluation, folder: Path) -> None:
    """Replace what an earlier evaluation left; report.json comes last."""
    replace(folder, evaluation.numbers, pictures_and_tables(evaluation, folder))


def replace(folder: Path, numbers: Mapping[str, Any], files: Iterable[str]) -> None:
    """Args: files: the names of files in the folder, each as soon as it is there."""
    check_evaluation_folder(folder).mkdir(parents=True, exist_ok=True)
    written = set(files)
    for name in set(ALL) - written:  # of another kind of evaluation
        (folder / name).unlink(missing_ok=True)
    write_json(folder / REPORT, numbers)


def pictures_and_tables(evaluation: Evaluation, folder: Path) -> Iterator[str]:
    """The names of the files, each as soon as it is there."""
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
    figures.confusion(counts, classes, folder / "confusion.png")
    yield "confusion.png"
    bins = metrics.reliability(confidence, predicted == labels)
    figures.calibration(bins, numbers["expected_calibration_error"], folder / "calibration.png")
    yield "calibration.png"
    wrong = mistakes(evaluation)
    lines = ([source.get_name(at), classes[one], classes[other], f"{sure:.6g}"] for at, one, other, sure in wrong)
    yield write_csv(folder / "mistakes.csv", ["name", "label", "predicted", "confidence"], lines)
    if wrong:
        contact_sheet.save_contact_sheet(
            [tile(evaluation, mistake) for mistake in wrong[:SHOWN]], folder / "mistakes.png"
        )
        yield "mistakes.png"


def mistakes(evaluation: Evaluation) -> list[Mistake]:
    """The most confident first."""
    confidence, predicted = evaluation.logits.softmax(dim=1).max(dim=1)
    columns = evaluation.indices, evaluation.labels, predicted, confidence
    found = [Mistake(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return sorted((one for one in found if one.label != one.predicted), key=lambda one: (-one.confidence, one.sample))


def tile(evaluation: Evaluation, mistake: Mistake) -> contact_sheet.Tile:
    classes, source = evaluation.classes, evaluation.source
    picture = evaluation.preprocess.convert(source.read_image(mistake.sample, (contact_sheet.TILE, contact_sheet.TILE)))
    line = f"{classes[mistake.label]} → {classes[mistake.predicted]} {mistake.confidence:.0%}"
    return contact_sheet.Tile(picture, (line, source.get_name(mistake.sample)))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    with (
        replace_file(path) as beside,
        beside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path.name


def per_class(table: metrics.Table, classes: Sequence[str], precisions: Tensor | None) -> list[dict[str, Any]]:
    """A row for each class. Args: precisions: the average ones, of sets of labels."""
    columns: dict[str, list[float]] = {name: column.tolist() for name, column in table._asdict().items()}
    if precisions is not None:
        columns["average_precision"] = precisions.tolist()
    return [
        {"class": name, **{key: column[row] for key, column in columns.items()}} for row, name in enumerate(classes)
    ]


def report(numbers: Mapping[str, Any]) -> str:
    """The numbers to read first, in lines."""
    part = "" if numbers["fold"] is None else f", fold {numbers['fold']} of {numbers['folds']}"
    lines = [f"{numbers['pictures']:,} pictures of {numbers['source']}{part}"]
    wanted: dict[str, float] = {}
    if "explained_variance" in numbers:
        lines += [
            f"{'explained variance of hidden patches':<40}{numbers['explained_variance']:>8.2%}",
            f"{'squared error of hidden patches':<40}{numbers['loss']:>8.4f}",
            f"{'  of the mean of each patch over pictures':<40}{numbers['mean_of_patches']:>8.4f}",
        ]
    if "per_class" not in numbers:
        lines += ["the model has no classes: what follows is of its frozen features"] if "probes" in numbers else []
    elif numbers["several_labels"]:
        wanted = {
            "mean average precision": numbers["mean_average_precision"],
            "  of class frequencies": numbers["baselines"]["class frequencies"],
            "F1, macro": numbers["macro_f1"],
            "F1, micro": numbers["micro_f1"],
            "every label right": numbers["exact_match"],
        }
    else:
        wanted = {"top-1 accuracy": numbers["top1"], **numbers.get("baselines", {})}
        wanted |= {"top-5 accuracy": numbers["top5"]} if "top5" in numbers else {}
        wanted |= {f"macro {name}": numbers[f"macro_{name}"] for name in metrics.COLUMNS}
        wanted |= {"mean confidence": numbers["mean_confidence"]}
        wanted |= {"expected calibration error": numbers["expected_calibration_error"]}
    lines += [f"{name:<30}{value:>8.2%}" for name, value in wanted.items()]
    if "negative_log_likelihood" in numbers:
        lines.append(f"{'negative log likelihood':<30}{numbers['negative_log_likelihood']:>8.4f}")
    if scores := numbers.get("probes"):
        scores = scores if "per_class" in numbers else {**scores, **numbers["baselines"]}
        lines.append(f"frozen features and pixels, {numbers['probes_are']}")
        wide = max(28, *(len(name) + 2 for name in scores))
        lines += [f"  {name:<{wide}}{value:>8.2%}" for name, value in scores.items()]
    return "\n".join(lines)
