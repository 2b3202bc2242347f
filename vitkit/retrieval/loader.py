"""Pictures and captions from files, on processes of their own if wanted. N pictures, C channels, h w pixels."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit.data.pictures import keep_memory
from vitkit.data.preprocess import Preprocess
from vitkit.retrieval.scan import Content, Entry, content


class Read(NamedTuple):
    """An entry and what is in it; its picture is at `place` among the pixels, -1 where it was not decoded."""

    entry: Entry
    content: Content
    place: int
    width: int
    height: int


class EntryBatch(NamedTuple):
    reads: tuple[Read, ...]
    pixels: UInt8[Tensor, "N C h w"]


class Parts(Dataset[EntryBatch]):
    """Args: known: hashes of pictures that are not decoded."""

    def __init__(self, entries: Sequence[Entry], preprocess: Preprocess, known: frozenset[str], batch: int) -> None:
        self.entries, self.preprocess, self.known, self.batch = entries, preprocess, known, batch

    def __len__(self) -> int:
        return -(-len(self.entries) // self.batch)

    def __getitem__(self, place: int) -> EntryBatch:
        images: list[Image.Image] = []
        reads: list[Read] = []
        for entry in self.entries[place * self.batch : (place + 1) * self.batch]:
            found = content(entry, self.known)
            width, height = found.picture.size if found.picture else (0, 0)
            if found.picture:
                try:
                    images.append(self.preprocess.resize(self.preprocess.convert(found.picture)))
                except (ValueError, OSError, MemoryError) as error:
                    found = found._replace(captions=(), reason=f"{type(error).__name__}: {error}")
            decoded = bool(found.picture and not found.reason)
            # The whole picture would travel between processes, and is no longer needed.
            reads.append(Read(entry, found._replace(picture=None), len(images) - 1 if decoded else -1, width, height))
        empty = torch.zeros(0, self.preprocess.channels, *self.preprocess.size, dtype=torch.uint8)
        return EntryBatch(tuple(reads), self.preprocess.pixels(images) if images else empty)


def loader(parts: Parts, workers: int = 0) -> DataLoader[EntryBatch]:
    return DataLoader(
        parts,
        batch_size=None,
        num_workers=workers,
        # LanceDB's threads do not survive a fork.
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=keep_memory,
        generator=torch.Generator(),  # its own: nothing is drawn from the caller's
    )
