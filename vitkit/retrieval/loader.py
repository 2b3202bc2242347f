"""Batches of pictures and captions, read by worker processes if asked for. N pictures, C channels, h w pixels."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit.data.pictures import prepare_worker
from vitkit.data.preprocess import Preprocess
from vitkit.retrieval.scan import Content, Entry, read_content


class LoadedEntry(NamedTuple):
    """An entry and its content, without the picture: that is row `row` of the pixels, -1 if it was not decoded."""

    entry: Entry
    content: Content
    row: int
    width: int
    height: int


class EntryBatch(NamedTuple):
    entries: tuple[LoadedEntry, ...]
    pixels: UInt8[Tensor, "N C h w"]


class EntryBatches(Dataset[EntryBatch]):
    """The entries in batches. Args: hashes: of pictures that are not decoded, as they are in the collection."""

    def __init__(self, entries: Sequence[Entry], preprocess: Preprocess, hashes: frozenset[str], batch: int) -> None:
        self.entries, self.preprocess, self.hashes, self.batch = entries, preprocess, hashes, batch

    def __len__(self) -> int:
        return -(-len(self.entries) // self.batch)

    def __getitem__(self, index: int) -> EntryBatch:
        images: list[Image.Image] = []
        entries: list[LoadedEntry] = []
        for entry in self.entries[index * self.batch : (index + 1) * self.batch]:
            content = read_content(entry, self.hashes)
            width, height = content.picture.size if content.picture else (0, 0)
            if content.picture:
                try:
                    images.append(self.preprocess.resize(self.preprocess.convert(content.picture)))
                except (ValueError, OSError, MemoryError) as error:
                    content = content._replace(captions=(), reason=f"{type(error).__name__}: {error}")
            row = len(images) - 1 if content.picture and not content.reason else -1
            # Without the picture, which is no longer needed and would be sent between processes.
            entries.append(LoadedEntry(entry, content._replace(picture=None), row, width, height))
        empty = torch.zeros(0, self.preprocess.channels, *self.preprocess.size, dtype=torch.uint8)
        return EntryBatch(tuple(entries), self.preprocess.stack_pixels(images) if images else empty)


def make_loader(batches: EntryBatches, workers: int = 0) -> DataLoader[EntryBatch]:
    return DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        # LanceDB's threads do not survive a fork.
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=prepare_worker,
        generator=torch.Generator(),  # else the loader would draw from the caller's
    )
