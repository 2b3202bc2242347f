"""Statistics and ablation of a model's heads over the images of a source."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.image_bundle import build_untrained
from vitkit.bundle.record_file import read_record
from vitkit.convert.open import open_image_tower
from vitkit.data import order
from vitkit.data.annotations.labels import LABELS
from vitkit.data.batches import Reading, read_batches
from vitkit.data.order import FOLDS
from vitkit.data.sample_record import SampleRecord
from vitkit.data.sample_selection import Selection, select_all, select_held_out
from vitkit.data.sources.open import open_pictures
from vitkit.data.sources.source import COLUMNS, Source
from vitkit.interpret.examine.head_report import HeadReport
from vitkit.interpret.examine.image_model import AttentionModel, make_attention_model, open_attention_model
from vitkit.interpret.measure.ablation import DRAWS, Ablation, ablate_heads
from vitkit.interpret.measure.comparison import check_comparable, compare_statistics
from vitkit.interpret.measure.effects import (
    Effect,
    measure_class_effect,
    measure_embedding_effect,
    measure_multilabel_effect,
)
from vitkit.interpret.measure.flags import flag_ablation, flag_statistics
from vitkit.interpret.measure.means import compute_head_means
from vitkit.interpret.measure.statistics import Statistics, statistics
from vitkit.interpret.see.edits import zero
from vitkit.support.devices import get_device
from vitkit.support.errors import format_count
from vitkit.support.progress import make_progress_bar

PICTURES = 256  # a share of 0.5 then has a confidence interval of +- 0.06
UNTRAINED = "untrained"


def heads(
    model: str | Path | Bundle | AttentionModel,
    source: str | Source,
    *,
    classes: Sequence[str] = (),
    pictures: int = PICTURES,
    fold: int | None = None,
    folds: int = FOLDS,
    ablation: bool = True,
    mean: bool = False,
    against: str | Path | Bundle | None = None,
    columns: tuple[str, ...] = COLUMNS,
    reading: Reading | None = None,
) -> HeadReport:
    """Compute attention statistics of every head over images, and ablate each head.

    Args:
        model: as in `open_attention_model`, or its result.
        classes: classes for a CLIP to distinguish.
        pictures: the most images, sampled evenly and always the same.
        fold, folds: use only the validation set of training with these numbers.
        ablation: ablate heads: for each head a pass over the images, and one more for the random baseline.
        mean: replace the output of an ablated head by its mean over the images instead of zeros.
        against: a model with equal numbers of layers and heads to compare with, or "untrained" for the model of the
            same folder before training.

    Raises: ValueError, one line, for a model or a source that cannot be used.
    """
    if mean and not ablation:
        raise ValueError("mean must be left out without ablation, got mean=True, ablation=False")
    reading = reading or Reading()
    attention_model = model if isinstance(model, AttentionModel) else open_attention_model(model, classes)
    baseline = None if against is None else open_baseline(attention_model, against)
    for opened in (attention_model, baseline):
        if opened is not None:
            opened.bundle.model.to(get_device(reading.device))
    opened_source = (
        source if isinstance(source, Source) else open_pictures(source, columns=columns, exclude=reading.exclude)
    )
    record = read_record(attention_model.bundle.source)
    sample = ImageSample.draw(opened_source, pictures, fold, folds, reading, record)
    if baseline is not None:
        check_comparable(measure_blank(baseline), measure_blank(attention_model))  # before minutes of measuring
    before = None if baseline is None else measure_heads(baseline, sample, f"measure {baseline.bundle.source}")
    after = measure_heads(attention_model, sample, "measure heads")
    targets, labels = match_labels(attention_model, opened_source)
    ablated = ablate_sample(attention_model, sample, after, targets, mean) if ablation else None
    facts: dict[str, Any] = {
        "model": attention_model.bundle.source,
        "source": source if isinstance(source, str) else format_count(len(source), "pictures"),
        "fold": fold,
        "folds": folds,
        "drawn_from": sample.population,
        **sample.selection.count_readable(sample.read),
        "labels": labels,
        "removed_is": "mean" if mean else "zero",
        "against": None if baseline is None else baseline.bundle.source,
        "unreadable": [*sample.unreadable],
    }
    sentences = (*flag_statistics(after), *(() if ablated is None else flag_ablation(ablated)))
    flags = (*after.skipped, *map(str, sentences))
    comparison = None if before is None else compare_statistics(before, after)
    return HeadReport(facts, after, ablated, comparison, flags, attention_model)


def open_baseline(model: AttentionModel, against: str | Path | Bundle) -> AttentionModel:
    """Open the model to compare with: another one, or the same one before training."""
    if against != UNTRAINED:
        return open_attention_model(against)
    if not model.bundle.source or not Path(model.bundle.source).is_dir():
        raise ValueError(f"against=untrained must come with a model folder of vitkit, got {model.bundle.source}")
    before = build_untrained(open_image_tower(model.bundle.source))
    return make_attention_model(before._replace(source=f"{model.bundle.source}, untrained"))


class ImageSample(NamedTuple):
    """Images sampled from a `population` of a source, and how to read them.

    `read` collects the indices of those that could be read, `unreadable` a line for each other one.
    """

    source: Source
    indices: Sequence[int]
    population: int
    reading: Reading
    selection: Selection
    read: set[int]
    unreadable: dict[str, None]

    @classmethod
    def draw(
        cls,
        source: Source,
        pictures: int,
        fold: int | None,
        folds: int,
        reading: Reading,
        record: SampleRecord | None = None,
    ) -> "ImageSample":
        """Sample images evenly and always the same; with a fold, from its validation set. Raises: ValueError."""
        if pictures < 1:
            raise ValueError(f"pictures must be at least 1, got pictures={pictures}")
        if fold is not None and not source.class_names:
            raise ValueError(f"fold must come with labelled pictures, which are split by class, got fold={fold}")
        if fold is None:
            population, numbers = range(len(source)), {}
        else:
            selection = select_held_out(record, source, LABELS.split(source, folds, fold), fold, folds)
            population, numbers = selection.samples, selection.numbers
        samples = order.draw_samples(population, pictures)
        drawn = select_all(record, source, samples)
        selection = drawn._replace(numbers=numbers | drawn.numbers)
        return cls(source, samples, len(population), reading, selection, set(), {})

    def load_batches(
        self, model: AttentionModel, targets: Tensor | None, title: str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield preprocessed images, and labels mapped by `targets` or -1. Raises: ValueError if there is no image."""
        weight, empty = next(model.model.parameters()), True
        for batch in read_batches(self.source, self.indices, model.preprocess, self.reading, title):
            self.unreadable.update(dict.fromkeys(batch.skipped))
            self.read.update(batch.indices.tolist())
            if len(batch.images):
                empty = False
                labels = torch.full((len(batch.images),), -1) if targets is None else targets[batch.labels]
                yield batch.images.to(weight), labels
        if empty:
            raise ValueError(f"source must hold a picture that can be read, got none; {next(iter(self.unreadable))}")


def measure_heads(model: AttentionModel, sample: ImageSample, title: str) -> Statistics:
    images = (images for images, _ in sample.load_batches(model, None, title))
    return statistics(model.model, model.run, images, model.layers, model.layout)


def measure_blank(model: AttentionModel) -> Statistics:
    """Measure a blank image: the layers and heads that can be measured, before any image is read."""
    black = next(model.model.parameters()).new_zeros(1, len(model.preprocess.mean), *model.preprocess.size)
    return statistics(model.model, model.run, [black], model.layers, model.layout)


def ablate_sample(
    model: AttentionModel, sample: ImageSample, statistics: Statistics, targets: Tensor | None, mean: bool
) -> Ablation:
    """Ablate the heads of the layers that could be measured."""
    how = zero
    if mean:
        images = (images for images, _ in sample.load_batches(model, None, "average heads"))
        how = compute_head_means(model.model, model.run, images, statistics.layers)
    bundle = model.bundle
    effect: Effect = measure_embedding_effect
    if bundle.class_names:
        effect = measure_multilabel_effect if bundle.multilabel else measure_class_effect
    passes = 1 + sum(2 * len(matrix) + DRAWS for matrix in statistics.similarity)
    total = passes * -(-len(sample.indices) // sample.reading.batch)
    with make_progress_bar(total, "ablate heads", " passes") as progress:
        pairs = sample.load_batches(model, targets, "")

        def tick() -> None:
            progress.update()

        return ablate_heads(model.model, model.run, pairs, statistics.layers, how, effect=effect, tick=tick)


def match_labels(model: AttentionModel, source: Source) -> tuple[Tensor | None, str]:
    """Return the model's class for each class of the source, if all are known, and a sentence on the target class."""
    class_names = model.bundle.class_names
    if not class_names:
        return None, "the model has no classes: effects are cosine distances between image embeddings"
    predicted = "effects are on the predicted class"
    if not source.class_names:
        return None, f"the images have no labels: {predicted}"
    if source.multilabel or model.bundle.multilabel:
        return None, f"an image may have several labels: {predicted}"
    if unknown := sorted(set(source.class_names) - set(class_names)):
        count = format_count(len(unknown), "classes")
        return None, f"the model does not know {count} of the source, such as {unknown[0]}: {predicted}"
    return torch.tensor([class_names.index(name) for name in source.class_names]), "effects are on the labelled class"
