"""Which samples train and which validate, and the order in which they are seen.

Everything random is a function of numbers that a checkpoint knows (seed, epoch, sample), so a run can go on exactly
where it stopped, in any number of workers and ranks. A sampler yields whole batches, lists of (epoch, index) picks.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import torch
from torch.utils.data import Sampler

Pick = tuple[int, int]


def derive(*numbers: int) -> int:
    """A seed of 32 bits (what NumPy accepts), independent for different numbers."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=4).digest())


def shuffled(samples: Sequence[int], seed: int) -> list[int]:
    permutation = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    return [samples[position] for position in permutation.tolist()]


def split(labels: Sequence[int], classes: Sequence[str], folds: int, fold: int) -> tuple[list[int], list[int]]:
    """The samples outside and inside one of `folds` parts, which share out every class evenly and never change.

    Raises: ValueError if a fold would lack a class.
    """
    if not (folds >= 2 and 0 <= fold < folds):
        raise ValueError(f"folds must be at least 2 and fold one of 0..folds-1, got folds={folds}, fold={fold}")
    members: list[list[int]] = [[] for _ in classes]
    for sample, label in enumerate(labels):
        members[label].append(sample)
    if small := {name: len(found) for name, found in zip(classes, members, strict=True) if len(found) < folds}:
        raise ValueError(f"every class must have at least folds={folds} pictures, got {small}; lower folds or give val")
    dealt = [sample for label, found in enumerate(members) for sample in shuffled(found, derive(label))]
    held_out = set(dealt[fold::folds])
    return [sample for sample in range(len(labels)) if sample not in held_out], sorted(held_out)


class TrainingOrder(Sampler[list[Pick]]):
    """A new shuffle each epoch, cut into global batches of batch * world, each shared out over the ranks.

    Step k therefore sees the same samples in one process as in several, where batch * world is the same. The smaller
    last batch is shared out as evenly as it goes; it is dropped only where a rank would get nothing.
    """

    def __init__(
        self, samples: Sequence[int], batch: int, seed: int, *, rank: int = 0, world: int = 1, done: Pick = (0, 0)
    ) -> None:
        """Args: done: the (epoch, batches) trained so far; in that epoch, and no other, so many batches are skipped."""
        self.samples = samples
        self.batch = batch
        self.seed = seed
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
        samples = shuffled(self.samples, derive(self.seed, epoch))
        stride = self.batch * self.world
        for step in range(self.done[1] if epoch == self.done[0] else 0, len(self)):
            together = samples[step * stride : (step + 1) * stride]
            start, stop = (len(together) * rank // self.world for rank in (self.rank, self.rank + 1))
            yield [(epoch, sample) for sample in together[start:stop]]


class ValidationOrder(Sampler[list[Pick]]):
    """Every sample once over all ranks, in order, without padding; a rank may get one fewer."""

    def __init__(self, samples: Sequence[int], batch: int, *, rank: int = 0, world: int = 1) -> None:
        self.samples = samples[rank::world]
        self.batch = batch

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch)

    def __iter__(self) -> Iterator[list[Pick]]:
        for start in range(0, len(self.samples), self.batch):
            yield [(0, sample) for sample in self.samples[start : start + self.batch]]
