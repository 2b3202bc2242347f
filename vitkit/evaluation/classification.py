"""Accuracy, calibration and errors of a classifier on labelled images, with baselines.

N readable images, K classes of the model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.bundle.image_bundle import build_untrained
from vitkit.bundle.record_file import read_record
from vitkit.convert.open import open_image_model
from vitkit.data import order
from vitkit.data.annotations.labels import LABELS, LABELS_OF_SOME
from vitkit.data.batches import Reading, read_batches
from vitkit.data.order import FOLDS
from vitkit.data.sample_selection import select_all, select_held_out
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import COLUMNS, Source
from vitkit.evaluation import metrics, probe_choice, probes
from vitkit.evaluation.report import Evaluation, list_class_rows
from vitkit.models.parts import require_image_model
from vitkit.support.devices import get_device
from vitkit.support.errors import format_count


class ModelOutputs(NamedTuple):
    """Logits (N, K) of readable images, labels as the model's classes, and indices in the source."""

    logits: Tensor
    labels: Tensor
    indices: Tensor
    probe_data: probes.ProbeData
    unreadable: list[str]


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
    columns: tuple[str, ...] = COLUMNS,
    reading: Reading | None = None,
) -> Evaluation:
    """Evaluate a classifier on the labelled images of a source. A model without classes is only probed.

    Args:
        model: may also be the result of `vitkit.zero_shot`.
        fold, folds: evaluate only the part that training with these numbers holds out.
        probe: the source that probes and the most frequent class are fitted to (default: the other folds; without a
            fold they are cross-validated over the evaluated images).
        knn, linear: whether to fit 20-NN and a linear probe to frozen features, and to pixels.
        probed: the most images that probes are fitted to.
    """
    reading = reading or Reading()
    reading.check()
    if probed < 1:
        raise ValueError(f"probed must be at least 1, got probed={probed}")
    bundle = open_image_model(model)
    classifies = bool(bundle.class_names)
    annotation = LABELS_OF_SOME if classifies and fold is None else LABELS  # the model has all classes
    pictures = source if isinstance(source, Source) else open_source(source, annotation, columns, reading.exclude)
    name = source if isinstance(source, str) else format_count(len(source), "pictures")
    kinds = probe_choice.choose_kinds(bundle, pictures, knn, linear)
    record = read_record(bundle.source)
    if fold is None:
        selection = select_all(record, pictures, range(len(pictures)))
    else:
        selection = select_held_out(record, pictures, LABELS.split(pictures, folds, fold), fold, folds)
    training = None
    if not bundle.multilabel:
        others = None if fold is None else selection.others
        training = probe_choice.choose_training(
            probe if kinds else None, name, pictures, others, columns, reading.exclude
        )
    networks, class_names = [bundle], bundle.class_names
    if not classifies:
        class_names = (training[0] if training else pictures).class_names
        networks += [build_untrained(bundle)] if Path(bundle.source).is_dir() else []
    for network in networks:
        network.model.to(get_device(reading.device))
    outputs = run_networks(networks, class_names, pictures, selection.samples, reading, "evaluate")
    numbers: dict[str, Any] = {"model": bundle.source, "source": name, "fold": fold, "folds": folds}
    numbers |= {"pictures": len(outputs.labels), "unreadable": outputs.unreadable}
    numbers |= selection.count_readable(outputs.indices.tolist())
    numbers["several_labels"] = bundle.multilabel
    numbers |= score_outputs(outputs, bundle)
    if training is not None:
        train_source, train_samples = training
        places = index_classes(train_source.class_names, class_names, classifies)
        labels = places[torch.tensor([train_source.labels[sample] for sample in train_samples])].numpy()
        train_data = outputs.probe_data.select([])
        if kinds:
            drawn = order.draw_samples(train_samples, probed)
            train_data = run_networks(networks, class_names, train_source, drawn, reading, "fit probes").probe_data
        splits = [probes.ProbeSplit(labels, train_data, outputs.probe_data)]
        origin = "the same source" if probe in (None, name) else probe
        count = format_count(len(train_data.labels if kinds else labels), "pictures")
        numbers["probes_are"] = f"fitted to {count} of {origin}"
        numbers |= group_scores(probes.score_splits(splits, kinds), numbers)
    elif not bundle.multilabel and (fault := probe_choice.check_folds(outputs.probe_data, needed=not classifies)):
        numbers["probes_are"] = fault
    elif not bundle.multilabel:
        numbers["probes_are"] = f"cross-validated over {probes.FOLDS} folds of these pictures"
        numbers |= group_scores(
            probes.score_splits(probes.split_cross_validation(outputs.probe_data, probed), kinds), numbers
        )
    tensors = outputs.logits, outputs.labels, outputs.indices
    return Evaluation(numbers, *tensors, pictures, get_preprocess(bundle), class_names)


@torch.inference_mode()
def run_networks(
    networks: Sequence[Bundle],
    class_names: Sequence[str],
    source: Source,
    samples: Sequence[int],
    reading: Reading,
    title: str,
) -> ModelOutputs:
    """Return the outputs of the first network, and the features of all, for the readable images of a source.

    Args:
        networks: the evaluated model, and perhaps one of random weights to compare its features with.
        class_names: of the model, else of the samples that probes are fitted to.

    Raises: ValueError for classes that the model lacks, for outputs that are not finite, and if no image is readable.
    """
    bundle, preprocess = networks[0], get_preprocess(networks[0])
    places = index_classes(source.class_names, class_names, bool(bundle.class_names))
    models = [require_image_model(network.model) for network in networks]
    weight = next(bundle.model.parameters())
    parts: list[tuple[Tensor, ...]] = []
    unreadable: list[str] = []
    for batch in read_batches(source, samples, preprocess, reading, title):
        unreadable += batch.skipped
        images = batch.images.to(weight)
        pooled = [model.pool(model.features(images)) for model in models]
        logits = models[0].head(pooled[0]) if bundle.class_names else pooled[0][:, :0]
        if not all(numbers.isfinite().all() for numbers in (logits, *pooled)):
            name = source.get_name(int(batch.indices[0]))
            raise ValueError(f"model must give finite numbers, got nan or inf in the batch that starts with {name}")
        labels = batch.labels if source.multilabel else places[batch.labels]
        if bundle.multilabel:
            labels = torch.zeros(logits.shape, dtype=torch.bool)
            labels[:, places] = batch.labels if source.multilabel else one_hot(batch.labels, len(places)).bool()
        numbers = (column.float().cpu() for column in (logits, *pooled))
        parts.append((labels, batch.indices, probes.flatten_pixels(batch.images, preprocess), *numbers))
    if not sum(len(part[0]) for part in parts):
        raise ValueError(f"source must hold pictures that can be read, got none: {'; '.join(unreadable[:1])}")
    labels, indices, pixels, logits, pooled, *random = (torch.cat(column) for column in zip(*parts, strict=True))
    random_features = random[0].numpy() if random else None
    probe_data = probes.ProbeData(pooled.numpy(), pixels.numpy(), labels.numpy(), random_features)
    return ModelOutputs(logits, labels, indices, probe_data, unreadable)


def index_classes(names: Sequence[str], class_names: Sequence[str], classifies: bool) -> Tensor:
    """Return the index of each class of a source among the model's classes, or among those of the probes."""
    if foreign := sorted(set(names) - set(class_names)):
        shown = ", ".join(foreign[:10]) + (", ..." if len(foreign) > 10 else "")
        owner = "the model" if classifies else "probe"
        hint = "; for classes added or renamed since, train a new run with --pretrained FOLDER" if classifies else ""
        raise ValueError(f"source must have only classes of {owner}, got {len(foreign)} others: {shown}{hint}")
    return torch.tensor([class_names.index(name) for name in names])


def score_outputs(outputs: ModelOutputs, bundle: Bundle) -> dict[str, Any]:
    """Return the metrics of the outputs, and a row for each class; nothing for a model without classes."""
    if not bundle.class_names:
        return {}
    logits, labels = outputs.logits, outputs.labels
    values, scores = metrics.compute_metrics(logits, labels), metrics.score_classes(logits, labels)
    if not bundle.multilabel:
        return {**values, "per_class": list_class_rows(scores, bundle.class_names, None)}
    rows = list_class_rows(scores, bundle.class_names, metrics.compute_average_precision(logits, labels))
    baselines = {"class frequencies": metrics.compute_frequency_baseline(labels)}
    better = probes.list_better_baselines("mean average precision", values["mean_average_precision"], baselines)
    return {**values, "per_class": rows, "baselines": baselines, "worse_than_baselines": better}


def group_scores(scores: probes.Scores, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores as in report.json: the most frequent class under baselines, probes if any, and better baselines.

    Args: model: its metrics; without classes it has none, and probes on its features are compared.
    """
    accuracy = {**scores.accuracy}
    numbers: dict[str, Any] = {"baselines": {probes.FREQUENT: accuracy.pop(probes.FREQUENT)}}
    numbers |= {"probes": accuracy} if accuracy else {}
    if "top1" not in model:
        return {**numbers, "worse_than_baselines": probes.list_inputs_above_features(accuracy)}
    others, recalls = (
        {name: value for name, value in values.items() if not name.endswith("on features")} for values in scores
    )
    better = probes.list_better_baselines("accuracy", model["top1"], others)
    better += probes.list_better_baselines("macro recall", model["macro_recall"], recalls)
    return {**numbers, "baselines_macro_recall": recalls, "worse_than_baselines": better}
