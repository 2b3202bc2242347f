"""Batches of images in the order of a list, for prediction, evaluation and features."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from vitkit.data.order import Pick, ValidationOrder
from vitkit.data.pictures import SKIP, Batch, ImageReading, Loader, Pictures, iterate_loader, prepare_worker
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Files, Source
from vitkit.support.errors import InputWarning, format_few
from vitkit.support.progress import make_progress_bar


class Reading(NamedTuple):
    """The batch size, the number of worker processes, the device, the scale at which JPEGs are decoded, and patterns of
    files to leave out where a source is opened by its name, see `open_source`."""

    batch: int = 32
    workers: int = 0
    device: str = "auto"
    reduce: float | None = None
    exclude: str | Sequence[str] = ()

    def check(self) -> None:
        if self.batch < 1 or self.workers < 0:
            raise ValueError(
                f"batch must be at least 1 and workers at least 0, got batch={self.batch}, workers={self.workers}"
            )


class PathBatch(NamedTuple):
    """Paths, and the batch of their readable images: `batch.indices` are indices of `paths`."""

    paths: tuple[str, ...]
    batch: Batch


def read_batches(
    source: Source, samples: Sequence[int], preprocess: Preprocess, reading: Reading, title: str | None
) -> Iterator[Batch]:
    """Yield the samples of a source as batches, with a progress bar; each batch lists its unreadable images.

    A warning at the end counts the images that are too small.
    """
    reading.check()
    pictures = Pictures(source, preprocess, reading=ImageReading(reduce=reading.reduce, on_error=SKIP))
    loader = Loader(pictures, ValidationOrder(samples, reading.batch), reading.workers)
    tiny: list[str] = []
    with make_progress_bar(len(samples), title) as progress:
        for batch in iterate_loader(loader):
            yield batch
            progress.update(len(batch.indices) + len(batch.skipped))
            tiny += [source.get_name(index) for index in batch.tiny]
    warn_of_tiny_images(tiny, len(samples), preprocess)


def read_paths(
    paths: Iterable[str], preprocess: Preprocess, reading: Reading, title: str | None, total: int | None = None
) -> Iterator[PathBatch]:
    """Yield the images of paths as batches. Paths may come without end: only those of a few batches are taken ahead.

    A warning at the end counts the images that are too small.
    """
    reading.check()
    count, tiny = 0, list[str]()
    dataset = PathImages(preprocess, reading.reduce)
    loader = DataLoader(
        dataset,
        sampler=PathSampler(paths, reading.batch),
        batch_size=None,
        num_workers=reading.workers,
        worker_init_fn=prepare_worker,
        generator=torch.Generator(),  # of its own, so that nothing is drawn from the global one
    )
    with make_progress_bar(total, title) as progress:
        for batch in iterate_loader(loader):
            yield batch
            progress.update(len(batch.paths))
            count += len(batch.paths)
            tiny += [batch.paths[index] for index in batch.batch.tiny]
    warn_of_tiny_images(tiny, count, preprocess)


def warn_of_tiny_images(names: Sequence[str], total: int, preprocess: Preprocess) -> None:
    """Warn of images below `Preprocess.least_size`, if there are any, out of `total` images."""
    if names:
        least, size = (" x ".join(map(str, pair)) for pair in (preprocess.least_size, preprocess.size))
        warnings.warn(
            f"pictures smaller than {least} pixels (h, w), which show next to nothing at the model's {size}: "
            f"{len(names):,} of {total:,}, {format_few(names)}",
            InputWarning,
            stacklevel=3,
        )


class PathImages(Dataset[PathBatch]):
    def __init__(self, preprocess: Preprocess, reduce: float | None) -> None:
        self.preprocess = preprocess
        self.reduce = reduce

    def __getitem__(self, paths: tuple[str, ...]) -> PathBatch:
        unlabelled = Files(paths, (), [-1] * len(paths))
        pictures = Pictures(unlabelled, self.preprocess, reading=ImageReading(reduce=self.reduce, on_error=SKIP))
        return PathBatch(paths, pictures[[Pick(0, index) for index in range(len(paths))]])


class PathSampler(Sampler[tuple[str, ...]]):
    def __init__(self, paths: Iterable[str], size: int) -> None:
        self.paths = paths
        self.size = size

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        paths = iter(self.paths)
        while portion := tuple(islice(paths, self.size)):
            yield portion
