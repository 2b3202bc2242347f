"""Accuracy, calibration and errors of a classifier on labelled images, next to baselines.

N images that could be read, K the model's classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.bundle.image_bundle import build_untrained
from vitkit.convert.open import open_image_model
from vitkit.data import order
from vitkit.data.annotations.labels import LABELS
from vitkit.data.batches import Reading, read_batches
from vitkit.data.order import FOLDS
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import COLUMNS, Source
from vitkit.evaluation import metrics, probe_choice, probes
from vitkit.evaluation.report import Evaluation, per_class
from vitkit.models.parts import require_image_model
from vitkit.support.devices import get_device


class Seen(NamedTuple):
    """What the model made of pictures: (N, K), labels by its own classes, places in the source."""

    logits: Tensor
    labels: Tensor
    indices: Tensor
    frozen: probes.Frozen
    skipped: list[str]


def evaluate(
    model: str | Path | Bundle,
    source: str | Source,
    *,
    fold: int | None = None,
    folds: int = FOLDS,
    probe: str | None = None,
    knn: bool = True,
    linear: bool = True,
    probed: int = probes.PROBED,
    columns: tuple[str, str] = COLUMNS,
    reading: Reading | None = None,
) -> Evaluation:
    """Classify a source's pictures and compare with their labels; a model without classes is only probed.

    Args:
        model: also what `vitkit.zero_shot` gives.
        fold, folds: only the part that training with these numbers holds out.
        probe: the source that probes and the most frequent class are fitted to (default: the other folds; without a
            fold they are cross-validated over the pictures themselves).
        knn, linear: whether to fit 20-NN and a linear probe to frozen features, and to pixels.
        probed: pictures that they are fitted to, at most.
    """
    reading = reading or Reading()
    reading.check()
    if probed < 1:
        raise ValueError(f"probed must be at least 1, got probed={probed}")
    bundle = open_image_model(model)
    classifies = bool(bundle.class_names)
    pictures = source if isinstance(source, Source) else open_source(source, columns=columns)
    name = source if isinstance(source, str) else f"{len(source):,} pictures"
    kinds = probe_choice.suited(bundle, pictures, knn, linear)
    samples: Sequence[int] = range(len(pictures))
    if fold is not None:
        samples = LABELS.split(pictures, folds, fold)[1]
    known = None
    if not bundle.multilabel:
        known = probe_choice.choose_known(probe if kinds else None, name, pictures, fold, folds, columns)
    networks, class_names = [bundle], bundle.class_names
    if not classifies:
        class_names = (known[0] if known else pictures).class_names
        networks += [build_untrained(bundle)] if Path(bundle.source).is_dir() else []
    for network in networks:
        network.model.to(get_device(reading.device))
    seen = see(networks, class_names, pictures, samples, reading, "evaluate")
    numbers: dict[str, Any] = {"model": bundle.source, "source": name, "fold": fold, "folds": folds}
    numbers |= {"pictures": len(seen.labels), "unreadable": seen.skipped, "several_labels": bundle.multilabel}
    numbers |= scores(seen, bundle)
    if known is not None:
        whole, inside = known
        places = among(whole.class_names, class_names, classifies)
        labels = places[torch.tensor([whole.labels[sample] for sample in inside])].numpy()
        drawn = order.draw_samples(inside, probed)
        title = "read what probes are fitted to"
        fitting = see(networks, class_names, whole, drawn, reading, title).frozen if kinds else seen.frozen.of([])
        splits = [probes.ProbeSplit(labels, fitting, seen.frozen)]
        origin = "the same source" if probe in (None, name) else probe
        numbers["probes_are"] = f"fitted to {len(fitting.labels if kinds else labels):,} pictures of {origin}"
        numbers |= group_scores(probes.score_splits(splits, kinds))
    elif not bundle.multilabel and (fault := probe_choice.check_folds(seen.frozen, needed=not classifies)):
        numbers["probes_are"] = fault
    elif not bundle.multilabel:
        numbers["probes_are"] = f"cross-validated over {probes.FOLDS} folds of these pictures"
        numbers |= group_scores(probes.score_splits(probes.split_cross_validation(seen.frozen, probed), kinds))
    of_samples = seen.logits, seen.labels, seen.indices
    return Evaluation(numbers, *of_samples, pictures, get_preprocess(bundle), class_names)


@torch.inference_mode()
def see(
    networks: Sequence[Bundle],
    class_names: Sequence[str],
    source: Source,
    samples: Sequence[int],
    reading: Reading,
    title: str,
) -> Seen:
    """Args:
        networks: the one that is asked, and perhaps one whose features stand beside its own.
        class_names: the model's, or those of what probes are fitted to.

    Raises: ValueError for classes that the model lacks, for numbers that are not finite, and if nothing is left."""
    bundle, preprocess = networks[0], get_preprocess(networks[0])
    places = among(source.class_names, class_names, bool(bundle.class_names))
    models = [require_image_model(network.model) for network in networks]
    weight = next(bundle.model.parameters())
    parts: list[tuple[Tensor, ...]] = []
    skipped: list[str] = []
    for batch in read_batches(source, samples, preprocess, reading, title):
        skipped += batch.skipped
        images = batch.images.to(weight)
        pooled = [model.pool(model.features(images)) for model in models]
        logits = models[0].head(pooled[0]) if bundle.class_names else pooled[0][:, :0]
        if not all(numbers.isfinite().all() for numbers in (logits, *pooled)):
            name = source.get_name(int(batch.indices[0]))
            raise ValueError(f"model must give finite numbers, got others for {name} or what follows")
        labels = batch.labels if source.multilabel else places[batch.labels]
        if bundle.multilabel:
            labels = torch.zeros(logits.shape, dtype=torch.bool)
            labels[:, places] = batch.labels if source.multilabel else one_hot(batch.labels, len(places)).bool()
        numbers = (column.float().cpu() for column in (logits, *pooled))
        parts.append((labels, batch.indices, probes.flatten_pixels(batch.images, preprocess), *numbers))
    if not sum(len(part[0]) for part in parts):
        raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(skipped[:1])}")
    labels, indices, pixels, logits, pooled, *random = (torch.cat(column) for column in zip(*parts, strict=True))
    beside = random[0].numpy() if random else None
    return Seen(logits, labels, indices, probes.Frozen(pooled.numpy(), pixels.numpy(), labels.numpy(), beside), skipped)


def among(names: Sequence[str], class_names: Sequence[str], classifies: bool) -> Tensor:
    """The place of each name among the model's classes, or those of what probes are fitted to."""
    if foreign := sorted(set(names) - set(class_names)):
        shown = ", ".join(foreign[:10]) + (", ..." if len(foreign) > 10 else "")
        knows = "the model knows" if classifies else "probe has too"
        raise ValueError(f"source must have classes that {knows}, got {len(foreign)} others: {shown}")
    return torch.tensor([class_names.index(name) for name in names])


def scores(seen: Seen, bundle: Bundle) -> dict[str, Any]:
    """Return the metrics of the model's answers, and a row for each class; nothing where it has no classes."""
    if not bundle.class_names:
        return {}
    measured, table = metrics.measure(seen.logits, seen.labels), metrics.tabulate(seen.logits, seen.labels)
    if not bundle.multilabel:
        return {**measured, "per_class": per_class(table, bundle.class_names, None)}
    rows = per_class(table, bundle.class_names, metrics.average_precision(seen.logits, seen.labels))
    baselines = {"class frequencies": metrics.class_frequencies(seen.labels)}
    return {**measured, "per_class": rows, "baselines": baselines}


def group_scores(scores: dict[str, float]) -> dict[str, Any]:
    """Return scores as report.json holds them: the most frequent class among baselines, probes where there are any."""
    baselines = {probes.FREQUENT: scores.pop(probes.FREQUENT)}
    return {"baselines": baselines, "probes": scores} if scores else {"baselines": baselines}
