"""The split into training and validation samples, and the order of samples in an epoch.

Everything random is a function of numbers that a checkpoint knows (seed, epoch, sample). So a run continues exactly
where it stopped, with any number of workers and ranks. A sampler yields whole batches, as lists of picks.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler

FOLDS = 5  # the default of training


Labels = Sequence[int | tuple[int, ...]]  # one class each, or a set of classes each


class Pick(NamedTuple):
    """A sample, for the `copy`-th time in an epoch."""

    epoch: int
    sample: int
    copy: int = 0


def derive_seed(*numbers: int) -> int:
    """Return a seed of 32 bits (NumPy's limit), independent for different numbers."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=4).digest())


def shuffle_samples(samples: Sequence[int], seed: int) -> list[int]:
    permutation = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    return [samples[position] for position in permutation.tolist()]


def check_fold(folds: int, fold: int) -> None:
    if not (folds >= 2 and 0 <= fold < folds):
        raise ValueError(f"folds must be at least 2 and fold one of 0..folds-1, got folds={folds}, fold={fold}")


def split_folds(labels: Labels, classes: Sequence[str], folds: int, fold: int) -> tuple[list[int], list[int]]:
    """Return the samples outside and inside one of `folds` parts, which divide every class evenly and never change.

    A sample with several labels counts for the rarest of them, so common classes are divided less evenly. Samples
    without labels are divided as one more class. The sample of a class with one is always outside. Of fewer samples
    than folds one is inside.

    Raises: ValueError if no class has two samples.
    """
    check_fold(folds, fold)
    counts = count_per_class(labels, len(classes))
    if classes and max(counts) < 2:
        raise ValueError(f"a class must have two pictures, one of them to hold out, got {max(counts)}; give val")
    members: list[list[int]] = [[] for _ in [*classes, None]]
    for sample, label in enumerate(labels):
        members[find_rarest_class(label, counts)].append(sample)
    order = [
        sample
        for label, samples in enumerate(members)
        if label == len(classes) or counts[label] > 1
        for sample in shuffle_samples(samples, derive_seed(label))
    ]
    held_out = set(order[fold % max(len(order), 1) :: folds])
    return [sample for sample in range(len(labels)) if sample not in held_out], sorted(held_out)


def split_groups(groups: Sequence[int], folds: int, fold: int) -> tuple[list[int], list[int]]:
    """Return the samples outside and inside one of `folds` parts, which never change and share no group.

    A group that is larger than a fold, such as one caption of most images, is always outside.

    Args: groups: the group of each sample.
    Raises: ValueError if there are fewer such groups than folds.
    """
    check_fold(folds, fold)
    sizes = Counter(groups)
    if len(sizes) < folds:
        raise ValueError(f"captions must differ between at least folds={folds} pictures, got {len(sizes)}; give val")
    candidates = sorted(group for group, size in sizes.items() if size * folds <= len(groups))
    if len(candidates) < folds:
        most = max(sizes.values())
        raise ValueError(f"captions must not join more than a fold, got {most:,} of {len(groups):,} pictures; give val")
    held_out = set(shuffle_samples(candidates, derive_seed(len(candidates)))[fold::folds])
    outside = [sample for sample, group in enumerate(groups) if group not in held_out]
    return outside, [sample for sample, group in enumerate(groups) if group in held_out]


def count_per_class(labels: Labels, classes: int) -> list[int]:
    """Return the number of samples of each class."""
    counts = Counter(index for label in labels for index in ([label] if isinstance(label, int) else label))
    return [counts[label] for label in range(classes)]


def find_rarest_class(label: int | tuple[int, ...], counts: Sequence[int]) -> int:
    """Return the class of a label that has the fewest samples; -1 for an empty set."""
    if isinstance(label, int):
        return label
    return min(label, key=lambda index: (counts[index], index), default=-1)


class Draw(ABC):
    """The choice and order of an epoch's samples: as many picks as there are samples."""

    @abstractmethod
    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        """Return the samples of an epoch in order. Args: labels: of the samples, in their order."""

    def fit_batch(self, batch: int) -> "Draw":
        """Return this draw for a global batch size. Most draws do not depend on it."""
        return self


class Shuffled(Draw):
    """Each sample once, in random order."""

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        return shuffle_samples(samples, seed)


class Balanced(Draw):
    """Every class equally often, with replacement: samples of rare classes are repeated, each time augmented anew.

    A sample with several labels counts for the rarest of them. Samples without labels keep their share.
    """

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        indices = (index for label in labels for index in ([label] if isinstance(label, int) else label))
        largest = max(indices, default=-1)
        counts = count_per_class(labels, largest + 1)
        rarest = np.array([find_rarest_class(label, counts) for label in labels])
        classes, inverse, sizes = np.unique(rarest, return_inverse=True, return_counts=True)
        unlabelled = sizes[classes < 0].sum() / len(labels)
        shares = np.where(classes < 0, unlabelled, (1 - unlabelled) / max(1, (classes >= 0).sum()))
        weights = (shares / sizes)[inverse]
        positions = np.random.default_rng(seed).choice(len(samples), len(samples), p=weights / weights.sum())
        return [samples[position] for position in positions.tolist()]


class Apart(Draw):
    """The samples of another draw, in an order whose batches hold each label once while enough labels remain."""

    def __init__(self, draw: Draw, batch: int) -> None:
        self.draw, self.batch = draw, batch

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        label_of = dict(zip(samples, labels, strict=True))
        draw = self.draw(samples, labels, seed)
        end = len(draw)
        # Places in the draw: the first of each label, and for each place the next one of its label.
        following, first = [end] * end, dict[int | tuple[int, ...], int]()
        for place in reversed(range(end)):
            label = label_of[draw[place]]
            following[place], first[label] = first.get(label, end), place
        # The next place of each label: first places of labels that are in no batch yet, and a heap of later ones.
        fresh, later = deque(sorted(first.values())), list[int]()
        order: list[int] = []

        def take() -> int:
            place = heappop(later) if later and not (fresh and fresh[0] < later[0]) else fresh.popleft()
            order.append(draw[place])
            return following[place]

        while distinct := min(self.batch, len(fresh) + len(later)):
            for place in [take() for _ in range(distinct)]:
                if place < end:
                    heappush(later, place)
            for _ in range(min(self.batch - distinct, end - len(order))):  # fewer labels than the batch holds
                if (place := take()) < end:
                    heappush(later, place)
        return order


class Distinct(Draw):
    """Each sample once, with equal labels in different global batches while enough labels remain.

    Images that share a caption have equal labels.
    """

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        return shuffle_samples(samples, seed)

    def fit_batch(self, batch: int) -> Draw:
        return Apart(self, batch)


class Repeated(Draw):
    """Repeated augmentation: `times` augmentations of an image in a row, of 1 / times of the images an epoch.

    https://arxiv.org/abs/1901.09335, section 3; three times in DeiT (https://arxiv.org/abs/2012.12877, section 6).
    """

    def __init__(self, times: int = 3) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1, got times={times}")
        self.times = times

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        return [sample for sample in shuffle_samples(samples, seed) for _ in range(self.times)][: len(samples)]


class TrainingOrder(Sampler[list[Pick]]):
    """The samples of a draw for each epoch, in global batches of batch * world that are divided among the ranks.

    Step k therefore holds the same samples in one process as in several, if batch * world is the same. The smaller
    last batch is divided as evenly as possible; it is dropped only if a rank would get nothing.
    """

    def __init__(
        self,
        samples: Sequence[int],
        batch: int,
        seed: int,
        *,
        labels: Labels = (),
        draw: Draw | None = None,
        rank: int = 0,
        world: int = 1,
        done: tuple[int, int] = (0, 0),
    ) -> None:
        """Args: done: the (epoch, batches) trained so far; only that epoch skips its first batches."""
        self.samples = samples
        self.batch = batch
        self.seed = seed
        self.labels = labels
        self.draw = draw or Shuffled()
        self.rank = rank
        self.world = world
        self.done = done
        # Lightning starts the iterator of a resumed run, and with it the workers, before it calls set_epoch.
        self.epoch = done[0]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def dropped(self) -> int:
        """The number of samples that an epoch leaves out."""
        rest = len(self.samples) % (self.batch * self.world)
        return rest if rest < self.world else 0

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, on any rank, skipped ones included."""
        return -(-(len(self.samples) - self.dropped) // (self.batch * self.world))

    def __iter__(self) -> Iterator[list[Pick]]:
        epoch = self.epoch
        copies: Counter[int] = Counter()
        picks: list[Pick] = []
        for sample in self.draw(self.samples, self.labels, derive_seed(self.seed, epoch)):
            picks.append(Pick(epoch, sample, copies[sample]))
            copies[sample] += 1
        stride = self.batch * self.world
        for step in range(self.done[1] if epoch == self.done[0] else 0, len(self)):
            batch = picks[step * stride : (step + 1) * stride]
            start, stop = (len(batch) * rank // self.world for rank in (self.rank, self.rank + 1))
            yield batch[start:stop]


class ValidationOrder(Sampler[list[Pick]]):
    """Each sample once over all ranks, in order, without padding; a rank may get one sample fewer."""

    def __init__(self, samples: Sequence[int], batch: int, *, rank: int = 0, world: int = 1) -> None:
        self.samples = samples[rank::world]
        self.batch = batch

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch)

    def __iter__(self) -> Iterator[list[Pick]]:
        for start in range(0, len(self.samples), self.batch):
            yield [Pick(0, sample) for sample in self.samples[start : start + self.batch]]


def draw_samples(samples: Sequence[int], most: int) -> Sequence[int]:
    """Return at most `most` samples, always the same ones, in order."""
    return samples if len(samples) <= most else sorted(shuffle_samples(samples, 0)[:most])
