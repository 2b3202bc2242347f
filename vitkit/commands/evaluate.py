"""`vitkit evaluate`: how good a trained classifier is on labelled pictures, and where it is wrong.

Letters: N pictures that could be read, K the model's classes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vitkit import metrics
from vitkit.commands import probes
from vitkit.commands.batches import Reading, add_reading, batches, chosen_reading, present
from vitkit.commands.evaluation import Evaluation, checked_folder, per_class, report, write
from vitkit.commands.features import Readable, open_readable
from vitkit.data.order import split
from vitkit.data.sources import COLUMNS, Source, open_source, require
from vitkit.weights import classes_in

PROBED = 10_000  # pictures that probes are fitted to: 10 classes of 32x32 RGB are a minute of solving on one core


class Seen(NamedTuple):
    """What the model made of pictures: (N, K), labels by its own classes, places in the source."""

    logits: Tensor
    labels: Tensor
    indices: Tensor
    frozen: probes.Frozen
    skipped: list[str]


def evaluate(
    model: str | Path,
    source: str,
    *,
    fold: int | None = None,
    folds: int = 5,
    probe: str | None = None,
    probing: bool = True,
    probed: int = PROBED,
    columns: tuple[str, str] = COLUMNS,
    reading: Reading | None = None,
) -> Evaluation:
    """Classify a source's pictures and compare with their labels.

    Args:
        fold, folds: only the part that training with these numbers holds out.
        probe: the source that probes are fitted to (default: the other folds of the pictures themselves).
        probing: whether to fit 20-NN and a linear probe to frozen features, and to pixels.
        probed: pictures that they are fitted to, at most.
    """
    reading = reading or Reading()
    reading.check()
    if probed < 1:
        raise ValueError(f"probed must be at least 1, got probed={probed}")
    opened, pictures = open_readable(model), open_source(source, columns)
    samples: Sequence[int] = range(len(pictures))
    if fold is not None:
        samples = split(pictures.labels, pictures.classes, folds, fold)[1]
    several = classes_in(Path(model))[1]
    if pictures.several and not several:
        raise ValueError(f"source must have one label for each picture, as the model gives, got several in {source}")
    probing = probing and not several
    known = None
    if probing:
        require("sklearn", "a probe")
        known = known_pictures(probe, source, pictures, fold, folds, columns)
    opened.model.to(present(reading.device))
    seen = see(opened, pictures, samples, several, reading, "evaluate")
    numbers: dict[str, Any] = {"model": str(model), "source": source, "fold": fold, "folds": folds}
    numbers |= {"pictures": len(seen.labels), "unreadable": seen.skipped, "several_labels": several}
    numbers |= scores(seen, several, opened.classes)
    if known is not None:
        other, inside = known
        fitting = see(opened, other, probes.drawn(inside, probed), False, reading, "read what probes are fitted to")
        numbers["probes"] = probes.fitted(fitting.frozen, seen.frozen)
        numbers["probes_are"] = f"fitted to {len(fitting.labels):,} pictures of {probe}"
    elif probing and (few := smallest(seen.labels)) < probes.FOLDS:
        numbers["probes_are"] = f"left out: a class has {few} pictures, and {probes.FOLDS} folds are made"
    elif probing:
        numbers["probes"] = probes.cross_validated(seen.frozen, probed)
        numbers["probes_are"] = f"cross-validated over {probes.FOLDS} folds of these pictures"
    return Evaluation(numbers, seen.logits, seen.labels, seen.indices, pictures, opened.preprocess, opened.classes)


def known_pictures(
    probe: str | None, name: str, source: Source, fold: int | None, folds: int, columns: tuple[str, str]
) -> tuple[Source, Sequence[int]] | None:
    """What probes are fitted to, other than the evaluated pictures themselves.

    Raises: ValueError if it would be just these.
    """
    if probe is None:
        return None
    if probe != name:
        other = open_source(probe, columns)
        if other.several:
            raise ValueError(f"probe must have one label for each picture, got several in probe={probe}")
        return other, range(len(other))
    if fold is None:
        raise ValueError(f"probe must hold other pictures than source, got both {probe}; leave out probe, or give fold")
    return source, split(source.labels, source.classes, folds, fold)[0]


@torch.inference_mode()
def see(opened: Readable, source: Source, samples: Sequence[int], several: bool, reading: Reading, title: str) -> Seen:
    """Args: several: labels as sets.

    Raises: ValueError for classes that the model lacks, for numbers that are not finite, and if nothing is left."""
    places = among(source.classes, opened.classes)
    model, preprocess = opened.model, opened.preprocess
    weight = next(model.parameters())
    parts: list[tuple[Tensor, ...]] = []
    skipped: list[str] = []
    for batch in batches(source, samples, preprocess, reading, title):
        skipped += batch.skipped
        pooled = model.pool(model.features(batch.images.to(weight)))
        logits = model.head(pooled).float().cpu()
        if not logits.isfinite().all():
            name = source.name(int(batch.indices[0]))
            raise ValueError(f"model must give finite numbers, got others for {name} or what follows")
        labels = batch.labels if source.several else places[batch.labels]
        if several:
            labels = torch.zeros(logits.shape, dtype=torch.bool)
            labels[:, places] = batch.labels if source.several else one_hot(batch.labels, len(places)).bool()
        parts.append((logits, labels, batch.indices, pooled.float().cpu(), probes.pixels(batch.images, preprocess)))
    if not sum(len(part[0]) for part in parts):
        raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(skipped[:1])}")
    logits, labels, indices, pooled, pixels = (torch.cat(column) for column in zip(*parts, strict=True))
    frozen = probes.Frozen(pooled.numpy(), pixels.numpy(), labels.numpy())
    return Seen(logits, labels, indices, frozen, skipped)


def among(names: Sequence[str], classes: Sequence[str]) -> Tensor:
    """The place of each name among the model's classes."""
    if foreign := sorted(set(names) - set(classes)):
        shown = ", ".join(foreign[:10]) + (", ..." if len(foreign) > 10 else "")
        raise ValueError(f"source must have classes that the model knows, got {len(foreign)} others: {shown}")
    return torch.tensor([classes.index(name) for name in names])


def scores(seen: Seen, several: bool, classes: Sequence[str]) -> dict[str, Any]:
    if several:
        table = metrics.sets(seen.logits > 0, seen.labels)
        precisions = metrics.average_precision(seen.logits, seen.labels)
        return metrics.of_several(seen.logits, seen.labels) | {"per_class": per_class(table, classes, precisions)}
    table = metrics.confused(metrics.counts(seen.labels, seen.logits.argmax(dim=1), len(classes)))
    return metrics.of_one(seen.logits, seen.labels) | {"per_class": per_class(table, classes, None)}


def smallest(labels: Tensor) -> int:
    """How many pictures the rarest class has, of those that are there."""
    return int(labels.unique(return_counts=True)[1].min())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("vitkit evaluate", description="Compare a model's answers with labels.")
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    parser.add_argument(
        "source", help="labelled pictures, named as for --data.train; some of the model's classes or all"
    )
    parser.add_argument("--fold", type=int, help="only what training with --data.fold held out")
    parser.add_argument("--folds", type=int, help="of so many (default: 5)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="(default: the folder evaluation beside the model)")
    parser.add_argument("--columns", nargs=2, default=COLUMNS, metavar=("FILE", "LABEL"), help="of a table")
    parser.add_argument("--probe", metavar="SOURCE", help="what probes are fitted to (default: cross-validated)")
    parser.add_argument("--no-probe", action="store_true", help="leave out 20-NN and the linear probe")
    parser.add_argument("--probed", type=int, default=PROBED, help="fit them to so many at most (default: %(default)s)")
    add_reading(parser)
    options = parser.parse_args(arguments)

    if options.folds is not None and options.fold is None:
        raise ValueError(f"folds must come with the fold that was held out, got folds={options.folds}; add --fold")
    folder = checked_folder(options.out or Path(options.model).resolve().parent / "evaluation")
    evaluation = evaluate(
        options.model,
        options.source,
        fold=options.fold,
        folds=options.folds or 5,
        probe=options.probe,
        probing=not options.no_probe,
        probed=options.probed,
        columns=tuple(options.columns),
        reading=chosen_reading(options),
    )
    write(evaluation, folder)
    print(report(evaluation.numbers))
    print(f"{folder}/report.json has these, and beside it are tables and pictures")
    skipped = evaluation.numbers["unreadable"]
    for line in skipped:
        print(f"error: {line}", file=sys.stderr)
    if skipped:
        print(f"error: {len(skipped)} pictures could not be read, and do not count", file=sys.stderr)
    return 1 if skipped else 0
