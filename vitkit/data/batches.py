"""Images in the order of a list, as batches; predict, evaluate and features read through it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from vitkit.data.order import Pick, ValidationOrder
from vitkit.data.pictures import SKIP, Batch, ImageReading, Loader, Pictures, iterate_loader, keep_memory
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Files, Source
from vitkit.support.progress import make_progress_bar


class Reading(NamedTuple):
    """The batch size, the number of worker processes, the device, and the scale at which JPEGs are decoded."""

    batch: int = 32
    workers: int = 0
    device: str = "auto"
    reduce: float | None = None

    def check(self) -> None:
        if self.batch < 1 or self.workers < 0:
            raise ValueError(
                f"batch must be at least 1 and workers at least 0, got batch={self.batch}, workers={self.workers}"
            )


class Group(NamedTuple):
    """Paths, and what could be read of them: `batch.indices` are places among the paths."""

    paths: tuple[str, ...]
    batch: Batch


def batches(
    source: Source, samples: Sequence[int], preprocess: Preprocess, reading: Reading, title: str | None
) -> Iterator[Batch]:
    """Yield the samples of a source as batches, with a progress bar; each batch lists its unreadable images."""
    reading.check()
    pictures = Pictures(source, preprocess, reading=ImageReading(reduce=reading.reduce, on_error=SKIP))
    loader = Loader(pictures, ValidationOrder(samples, reading.batch), reading.workers)
    with make_progress_bar(len(samples), title) as progress:
        for batch in iterate_loader(loader):
            yield batch
            progress.update(len(batch.indices) + len(batch.skipped))


def group_paths(
    paths: Iterable[str], preprocess: Preprocess, reading: Reading, title: str | None, total: int | None = None
) -> Iterator[Group]:
    """Picture files as they are named, also without end: no more are asked for than a few batches need."""
    reading.check()
    dataset = Paths(preprocess, reading.reduce)
    loader = DataLoader(
        dataset,
        sampler=Portions(paths, reading.batch),
        batch_size=None,
        num_workers=reading.workers,
        worker_init_fn=keep_memory,
        generator=torch.Generator(),  # its own: nothing is drawn from the caller's
    )
    with make_progress_bar(total, title) as progress:
        for group in iterate_loader(loader):
            yield group
            progress.update(len(group.paths))


class Paths(Dataset[Group]):
    def __init__(self, preprocess: Preprocess, reduce: float | None) -> None:
        self.preprocess = preprocess
        self.reduce = reduce

    def __getitem__(self, paths: tuple[str, ...]) -> Group:
        unlabelled = Files(paths, (), [-1] * len(paths))
        pictures = Pictures(unlabelled, self.preprocess, reading=ImageReading(reduce=self.reduce, on_error=SKIP))
        return Group(paths, pictures[[Pick(0, index) for index in range(len(paths))]])


class Portions(Sampler[tuple[str, ...]]):
    def __init__(self, paths: Iterable[str], size: int) -> None:
        self.paths = paths
        self.size = size

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        paths = iter(self.paths)
        while portion := tuple(islice(paths, self.size)):
            yield portion
