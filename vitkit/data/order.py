"""Which samples train and which validate, and the order in which they are seen.

Everything random is a function of numbers that a checkpoint knows (seed, epoch, sample), so a run can go on exactly
where it stopped, in any number of workers and ranks. A sampler yields whole batches, lists of picks.
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

FOLDS = 5  # as training has it by default


Labels = Sequence[int | tuple[int, ...]]  # one class each, or a set of classes each


class Pick(NamedTuple):
    """A sample, for the `copy`-th time in an epoch."""

    epoch: int
    sample: int
    copy: int = 0


def derive_seed(*numbers: int) -> int:
    """A seed of 32 bits (what NumPy accepts), independent for different numbers."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=4).digest())


def shuffle_samples(samples: Sequence[int], seed: int) -> list[int]:
    permutation = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    return [samples[position] for position in permutation.tolist()]


def check_fold(folds: int, fold: int) -> None:
    if not (folds >= 2 and 0 <= fold < folds):
        raise ValueError(f"folds must be at least 2 and fold one of 0..folds-1, got folds={folds}, fold={fold}")


def split_folds(labels: Labels, classes: Sequence[str], folds: int, fold: int) -> tuple[list[int], list[int]]:
    """The samples outside and inside one of `folds` parts, which share out every class evenly and never change.

    A sample with several labels is dealt as one of its rarest, so that common ones are shared out less evenly; those
    without any are dealt as a class of their own.

    Raises: ValueError if a class has fewer samples than there are folds.
    """
    check_fold(folds, fold)
    counts = count_per_class(labels, len(classes))
    if small := {name: counts[label] for label, name in enumerate(classes) if counts[label] < folds}:
        raise ValueError(f"every class must have at least folds={folds} pictures, got {small}; lower folds or give val")
    members: list[list[int]] = [[] for _ in [*classes, None]]
    for sample, label in enumerate(labels):
        members[find_rarest_class(label, counts)].append(sample)
    dealt = [sample for label, found in enumerate(members) for sample in shuffle_samples(found, derive_seed(label))]
    held_out = set(dealt[fold::folds])
    return [sample for sample in range(len(labels)) if sample not in held_out], sorted(held_out)


def split_groups(groups: Sequence[int], folds: int, fold: int) -> tuple[list[int], list[int]]:
    """Return the samples outside and inside one of `folds` parts, which never change and share no group.

    A group that is larger than a fold, as where most images have one caption too, always trains.

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
    """How many samples each class has."""
    counts = Counter(one for label in labels for one in ([label] if isinstance(label, int) else label))
    return [counts[label] for label in range(classes)]


def find_rarest_class(label: int | tuple[int, ...], counts: Sequence[int]) -> int:
    """The class with the fewest samples among a sample's own; -1 where it has none."""
    if isinstance(label, int):
        return label
    return min(label, key=lambda one: (counts[one], one), default=-1)


class Draw(ABC):
    """What an epoch holds, in which order: as many picks as there are samples."""

    @abstractmethod
    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        """Args: labels: those of the samples, in their order."""

    def fit_batch(self, batch: int) -> "Draw":
        """Return this draw for batches of so many samples over all ranks; most draws are the same for all of them."""
        return self


class Shuffled(Draw):
    """Each sample once."""

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        return shuffle_samples(samples, seed)


class Balanced(Draw):
    """Every class equally often, with replacement: samples of rare classes come several times, varied anew each time.

    A sample with several labels counts for its rarest. Samples without any keep their share.
    """

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        known = 1 + max((one for label in labels for one in ([label] if isinstance(label, int) else label)), default=-1)
        counts = count_per_class(labels, known)
        owners = np.array([find_rarest_class(label, counts) for label in labels])
        found, inverse, sizes = np.unique(owners, return_inverse=True, return_counts=True)
        unlabelled = sizes[found < 0].sum() / len(labels)
        shares = np.where(found < 0, unlabelled, (1 - unlabelled) / max(1, (found >= 0).sum()))
        weights = (shares / sizes)[inverse]
        chosen = np.random.default_rng(seed).choice(len(samples), len(samples), p=weights / weights.sum())
        return [samples[position] for position in chosen.tolist()]


class Apart(Draw):
    """What another draw gives, in another order: of equal labels one in each `batch`, as far as they go round."""

    def __init__(self, draw: Draw, batch: int) -> None:
        self.draw, self.batch = draw, batch

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        marks = dict(zip(samples, labels, strict=True))
        drawn = self.draw(samples, labels, seed)
        end = len(drawn)
        following, first = [end] * end, dict[int | tuple[int, ...], int]()  # places: the next, the first of a label
        for place in reversed(range(end)):
            mark = marks[drawn[place]]
            following[place], first[mark] = first.get(mark, end), place
        fresh, later = deque(sorted(first.values())), list[int]()  # of labels that are in no batch yet, and a heap
        order: list[int] = []

        def take() -> int:
            place = heappop(later) if later and not (fresh and fresh[0] < later[0]) else fresh.popleft()
            order.append(drawn[place])
            return following[place]

        while different := min(self.batch, len(fresh) + len(later)):
            for place in [take() for _ in range(different)]:
                if place < end:
                    heappush(later, place)
            for _ in range(min(self.batch - different, end - len(order))):  # labels are fewer than a batch
                if (place := take()) < end:
                    heappush(later, place)
        return order


class Distinct(Draw):
    """Each sample once, in an order that keeps equal labels out of a batch of all ranks while there are others.

    Of captioned images, equal labels are those of images that share a caption.
    """

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        return shuffle_samples(samples, seed)

    def fit_batch(self, batch: int) -> Draw:
        return Apart(self, batch)


class Repeated(Draw):
    """Repeated augmentation: `times` variants of each picture in a row, and 1 / times of the pictures an epoch.

    https://arxiv.org/abs/1901.09335, section 3; three times in DeiT (https://arxiv.org/abs/2012.12877, section 6).
    """

    def __init__(self, times: int = 3) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1, got times={times}")
        self.times = times

    def __call__(self, samples: Sequence[int], labels: Labels, seed: int) -> list[int]:
        return [sample for sample in shuffle_samples(samples, seed) for _ in range(self.times)][: len(samples)]


class TrainingOrder(Sampler[list[Pick]]):
    """What `draw` gives for each epoch, cut into global batches of batch * world, each shared out over the ranks.

    Step k therefore sees the same samples in one process as in several, where batch * world is the same. The smaller
    last batch is shared out as evenly as it goes; it is dropped only where a rank would get nothing.
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
        """Args: done: the (epoch, batches) trained so far; in that epoch, and no other, so many batches are skipped."""
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
        """Samples that an epoch leaves out."""
        rest = len(self.samples) % (self.batch * self.world)
        return rest if rest < self.world else 0

    def __len__(self) -> int:
        """Batches in a whole epoch, on any rank, whether or not some are skipped."""
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
            together = picks[step * stride : (step + 1) * stride]
            start, stop = (len(together) * rank // self.world for rank in (self.rank, self.rank + 1))
            yield together[start:stop]


class ValidationOrder(Sampler[list[Pick]]):
    """Every sample once over all ranks, in order, without padding; a rank may get one fewer."""

    def __init__(self, samples: Sequence[int], batch: int, *, rank: int = 0, world: int = 1) -> None:
        self.samples = samples[rank::world]
        self.batch = batch

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch)

    def __iter__(self) -> Iterator[list[Pick]]:
        for start in range(0, len(self.samples), self.batch):
            yield [Pick(0, sample) for sample in self.samples[start : start + self.batch]]


def draw_samples(samples: Sequence[int], most: int) -> Sequence[int]:
    """At most so many, always the same, in order."""
    return samples if len(samples) <= most else sorted(shuffle_samples(samples, 0)[:most])
