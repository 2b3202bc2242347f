"""The heads of a model over pictures of a source: measured, and removed one by one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.image_bundle import untrained
from vitkit.convert.open import open_image_tower
from vitkit.data import order
from vitkit.data.annotations.labels import LABELS
from vitkit.data.batches import Reading, batches
from vitkit.data.order import FOLDS
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import COLUMNS, Source
from vitkit.interpret.examine.head_report import Heads
from vitkit.interpret.examine.image_model import AttentionModel, attention_model, open_attention_model
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
from vitkit.support.progress import make_progress_bar

PICTURES = 256  # the interval of a share of 0.5 is then 0.06 to either side at worst


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
    columns: tuple[str, str] = COLUMNS,
    reading: Reading | None = None,
) -> Heads:
    """Measure every head of a model over pictures, and remove each.

    Args:
        model: as in `open_attention_model`, or what it gives.
        classes: what a CLIP is to tell apart, in words.
        pictures: so many at most, drawn evenly and always the same.
        fold, folds: only the part that training with these numbers holds out.
        ablation: whether heads are removed: one pass over the pictures for each head, and one more by chance.
        mean: a removed head gathers its mean over the pictures, in place of zeros.
        against: a model with as many layers and heads to compare with, or "untrained": a folder's before training.

    Raises: ValueError, one line, for a model or a source that cannot be examined.
    """
    if mean and not ablation:
        raise ValueError("mean must be left out where no head is removed, got mean=True, ablation=False")
    reading = reading or Reading()
    opened = model if isinstance(model, AttentionModel) else open_attention_model(model, classes)
    other = None if against is None else open_compared_model(opened, against)
    for one in (opened, other):
        if one is not None:
            one.bundle.model.to(get_device(reading.device))
    whole = source if isinstance(source, Source) else open_source(source, columns=columns)
    drawn = Drawn.of(whole, pictures, fold, folds, reading)
    if other is not None:
        check_comparable(glanced(other), glanced(opened))  # not after minutes
    before = None if other is None else measured(other, drawn, f"measure {other.bundle.source}")
    after = measured(opened, drawn, "measure heads")
    places, labels = labels_known(opened, whole)
    removed = remove(opened, drawn, after, places, mean) if ablation else None
    numbers: dict[str, Any] = {
        "model": opened.bundle.source,
        "source": source if isinstance(source, str) else f"{len(source):,} pictures",
        "fold": fold,
        "folds": folds,
        "drawn_from": drawn.among,
        "labels": labels,
        "removed_is": "mean" if mean else "zero",
        "against": None if other is None else other.bundle.source,
        "unreadable": [*drawn.skipped],
    }
    odd = (*flag_statistics(after), *(() if removed is None else flag_ablation(removed)))
    told = (*after.skipped, *map(str, odd))
    return Heads(numbers, after, removed, None if before is None else compare_statistics(before, after), told, opened)


def open_compared_model(opened: AttentionModel, against: str | Path | Bundle) -> AttentionModel:
    """Return the model to compare with: another one, or the same one before its training."""
    if against != UNTRAINED:
        return open_attention_model(against)
    if not opened.bundle.source or not Path(opened.bundle.source).is_dir():
        raise ValueError(f"against=untrained must come with a model folder of vitkit, got {opened.bundle.source}")
    before = untrained(open_image_tower(opened.bundle.source))
    return attention_model(before._replace(source=f"{opened.bundle.source}, untrained"))


class Drawn(NamedTuple):
    """Which pictures of a source are looked at, drawn `among` so many, and how they are read.

    `skipped` gathers those that cannot be.
    """

    source: Source
    samples: Sequence[int]
    among: int
    reading: Reading
    skipped: dict[str, None]

    @classmethod
    def of(cls, source: Source, pictures: int, fold: int | None, folds: int, reading: Reading) -> "Drawn":
        """So many at most, evenly and always the same; with a fold those that training with it holds out.

        Raises: ValueError.
        """
        if pictures < 1:
            raise ValueError(f"pictures must be at least 1, got pictures={pictures}")
        if fold is not None and not source.class_names:
            raise ValueError(f"fold must be of labelled pictures, which are split class by class, got fold={fold}")
        inside = range(len(source)) if fold is None else LABELS.split(source, folds, fold)[1]
        return cls(source, order.draw_samples(inside, pictures), len(inside), reading, {})

    def read(self, model: AttentionModel, places: Tensor | None, title: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Images as the model takes them, and labels by `places`, -1 without these. Raises: ValueError for no image."""
        weight, seen = next(model.model.parameters()), False
        for batch in batches(self.source, self.samples, model.preprocess, self.reading, title):
            self.skipped.update(dict.fromkeys(batch.skipped))
            if len(batch.images):
                seen = True
                labels = torch.full((len(batch.images),), -1) if places is None else places[batch.labels]
                yield batch.images.to(weight), labels
        if not seen:
            raise ValueError(f"source must hold a picture that can be read, got none; {next(iter(self.skipped))}")


def measured(model: AttentionModel, drawn: Drawn, title: str) -> Statistics:
    images = (images for images, _ in drawn.read(model, None, title))
    return statistics(model.model, model.run, images, model.layers, model.layout)


def glanced(model: AttentionModel) -> Statistics:
    """Of one black image: which layers and heads there are to measure, before any picture is read."""
    black = next(model.model.parameters()).new_zeros(1, len(model.preprocess.mean), *model.preprocess.size)
    return statistics(model.model, model.run, [black], model.layers, model.layout)


def remove(model: AttentionModel, drawn: Drawn, found: Statistics, places: Tensor | None, mean: bool) -> Ablation:
    """Of the layers that could be measured."""
    how = zero
    if mean:
        images = (images for images, _ in drawn.read(model, None, "average heads"))
        how = compute_head_means(model.model, model.run, images, found.layers)
    bundle = model.bundle
    effect: Effect = measure_embedding_effect
    if bundle.class_names:
        effect = measure_multilabel_effect if bundle.multilabel else measure_class_effect
    passes = 1 + sum(2 * len(matrix) + DRAWS for matrix in found.similarity)
    total = passes * -(-len(drawn.samples) // drawn.reading.batch)
    with make_progress_bar(total, "remove heads", " passes") as progress:
        pairs = drawn.read(model, places, "")

        def tick() -> None:
            progress.update()

        return ablate_heads(model.model, model.run, pairs, found.layers, how, effect=effect, tick=tick)


def labels_known(model: AttentionModel, source: Source) -> tuple[Tensor | None, str]:
    """The place of each of the source's classes among the model's, where all are known; and what is done about it."""
    class_names = model.bundle.class_names
    if not class_names:
        return None, "the model has no classes: effects are of the vector of a picture, 1 - cosine"
    predicted = "effects are of the class that the model finds likeliest"
    if not source.class_names:
        return None, f"the pictures have no labels: {predicted}"
    if source.multilabel or model.bundle.multilabel:
        return None, f"a picture may have several labels: {predicted}"
    if foreign := sorted(set(source.class_names) - set(class_names)):
        return None, f"the model does not know {len(foreign)} classes of the source, such as {foreign[0]}: {predicted}"
    return torch.tensor([class_names.index(name) for name in source.class_names]), "effects are of the labelled class"
