"""The heads of a model over pictures of a source: measured, and removed one by one."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.commands.examined import Examined
from vitkit.data import order
from vitkit.data.batches import Reading, batches
from vitkit.data.order import split
from vitkit.data.sources.source import Source
from vitkit.interpret.ablation import DRAWS, Ablation, ablate_heads
from vitkit.interpret.edits import zero
from vitkit.interpret.effects import Effect, one_class, several_classes, vectors
from vitkit.interpret.means import head_means
from vitkit.interpret.statistics import Statistics, statistics
from vitkit.support.progress import bar


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
        if fold is not None and not source.classes:
            raise ValueError(f"fold must be of labelled pictures, which are split class by class, got fold={fold}")
        inside = range(len(source)) if fold is None else split(source.labels, source.classes, folds, fold)[1]
        return cls(source, order.drawn(inside, pictures), len(inside), reading, {})

    def read(self, model: Examined, places: Tensor | None, title: str) -> Iterator[tuple[Tensor, Tensor]]:
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


def measured(model: Examined, drawn: Drawn, title: str) -> Statistics:
    images = (images for images, _ in drawn.read(model, None, title))
    return statistics(model.model, model.run, images, model.layers, model.layout)


def glanced(model: Examined) -> Statistics:
    """Of one black image: which layers and heads there are to measure, before any picture is read."""
    black = next(model.model.parameters()).new_zeros(1, len(model.preprocess.mean), *model.preprocess.size)
    return statistics(model.model, model.run, [black], model.layers, model.layout)


def remove(model: Examined, drawn: Drawn, found: Statistics, places: Tensor | None, mean: bool) -> Ablation:
    """Of the layers that could be measured."""
    how = zero
    if mean:
        images = (images for images, _ in drawn.read(model, None, "average heads"))
        how = head_means(model.model, model.run, images, found.layers)
    effect: Effect = (several_classes if model.several else one_class) if model.classes else vectors
    passes = 1 + sum(2 * len(matrix) + DRAWS for matrix in found.similarity)
    total = passes * -(-len(drawn.samples) // drawn.reading.batch)
    with bar(total, "remove heads", " passes") as progress:
        pairs = drawn.read(model, places, "")

        def tick() -> None:
            progress.update()

        return ablate_heads(model.model, model.run, pairs, found.layers, how, effect=effect, tick=tick)


def labels_known(model: Examined, source: Source) -> tuple[Tensor | None, str]:
    """The place of each of the source's classes among the model's, where all are known; and what is done about it."""
    if not model.classes:
        return None, "the model has no classes: effects are of the vector of a picture, 1 - cosine"
    predicted = "effects are of the class that the model finds likeliest"
    if not source.classes:
        return None, f"the pictures have no labels: {predicted}"
    if source.several or model.several:
        return None, f"a picture may have several labels: {predicted}"
    if foreign := sorted(set(source.classes) - set(model.classes)):
        return None, f"the model does not know {len(foreign)} classes of the source, such as {foreign[0]}: {predicted}"
    return torch.tensor([model.classes.index(name) for name in source.classes]), "effects are of the labelled class"
