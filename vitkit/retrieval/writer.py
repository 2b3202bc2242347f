"""From what was read to rows, and from rows to commits."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from vitkit.data.pictures import awaited
from vitkit.retrieval.database_errors import writing
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.loader import EntryBatch, Parts, Read, loader
from vitkit.retrieval.scan import Entry, below, escape_path, of_text
from vitkit.retrieval.store import Failure, Item, Known, Store


class IndexReading(NamedTuple):
    """How files are read and embedded: pictures at a time, processes that read, entries of a commit."""

    batch: int = 32
    workers: int = 0
    commit: int = 512

    def check(self) -> None:
        if self.batch < 1 or self.workers < 0 or self.commit < 1:
            raise ValueError(f"batch and commit must be at least 1 and workers at least 0, got {self}")


class Job(NamedTuple):
    """What there is to embed."""

    path: str
    embedder: Embedder
    todo: Sequence[Entry]
    known: Known
    reading: IndexReading

    def part(self, rank: int, world: int) -> "Job":
        return self._replace(todo=self.todo[rank::world])

    def parts(self) -> Parts:
        return Parts(self.todo, self.embedder.preprocess, frozenset(self.known.rows), self.reading.batch)


@dataclass
class Counts:
    """Pictures and captions that the model embedded; entries whose vector was there; failures; texts that were cut."""

    encoded: int = 0
    captions: int = 0
    reused: int = 0
    failed: int = 0
    cut: int = 0
    notes: list[str] = field(default_factory=list)

    def __add__(self, other: "Counts") -> "Counts":
        ours, theirs = asdict(self), asdict(other)
        return Counts(**{name: ours[name] + theirs[name] for name in ours})


class Writer:
    """Commits every `reading.commit` entries, and the rest when it is flushed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.store = Store(job.path)
        self.counts = Counts()
        self.items: list[Item] = []
        self.vectors: list[np.ndarray] = []
        self.failures: list[Failure] = []
        self.entries = 0

    def add(self, part: EntryBatch) -> None:
        good = [read for read in part.reads if not read.content.reason]
        self.failures += [failure(read) for read in part.reads if read.content.reason]
        self.counts.failed += len(part.reads) - len(good)
        self.counts.notes += [read.content.note for read in part.reads if read.content.note]
        if good:
            self.embed(good, self.job.embedder.pictures(part.pixels) if len(part.pixels) else None)
        self.entries += len(part.reads)
        if self.entries >= self.job.reading.commit:
            self.flush()

    def embed(self, reads: Sequence[Read], pictures: np.ndarray | None) -> None:
        known, embedder = self.job.known, self.job.embedder
        texts = {of_text(caption): caption for read in reads for caption in read.content.captions}
        old = [read.content.hash for read in reads if read.place < 0]
        held = self.store.held([*old, *(texts.keys() & known.rows.keys())], known)
        fresh = {hashed: caption for hashed, caption in texts.items() if hashed not in held}
        encoded = embedder.texts([*fresh.values()])
        captions = dict(zip(fresh, encoded.vectors, strict=True))
        self.counts.encoded += len(reads) - len(old)
        self.counts.reused += len(old)
        self.counts.captions += len(fresh)
        self.counts.cut += encoded.cut
        for read in reads:
            width, height = read.width, read.height
            if read.place >= 0 and pictures is not None:
                vector = pictures[read.place]
            else:
                vector, width, height = held[read.content.hash]
            first = item(read, width, height)
            self.items.append(first)
            self.vectors.append(vector)
            for line, caption in enumerate(read.content.captions, 1):
                hashed = of_text(caption)
                self.items.append(first._replace(line=line, caption=caption, hash=hashed))
                self.vectors.append(captions[hashed] if hashed in captions else held[hashed].vector)

    def flush(self) -> None:
        with writing(self.job.path):
            if self.items:
                self.store.commit(self.items, np.stack(self.vectors), self.job.known)
            self.store.refuse(self.failures, self.job.known)
        self.items, self.vectors, self.failures, self.entries = [], [], [], 0


def here(job: Job) -> Counts:
    """All of it in this process, with a bar of progress where stderr is a terminal."""
    writer = Writer(job)
    look = {"unit": " pictures", "delay": 1, "disable": None, "leave": False, "dynamic_ncols": True}
    with tqdm(total=len(job.todo), desc="index", **look) as progress:
        for part in awaited(loader(job.parts(), job.reading.workers)):
            writer.add(part)
            progress.update(len(part.reads))
    writer.flush()
    return writer.counts


def located(entry: Entry) -> tuple[str, str, str, bytes]:
    inside = entry.sample is None or below(entry.file, [entry.root])
    relative = os.path.relpath(entry.file, entry.root) if inside else entry.file
    return entry.id, escape_path(entry.root), escape_path(relative), os.fsencode(entry.file)


def item(read: Read, width: int, height: int) -> Item:
    captions, place = "\n".join(read.content.captions), located(read.entry)
    return Item(*place, 0, captions, read.content.hash, read.content.stamp, width, height)


def failure(read: Read) -> Failure:
    return Failure(*located(read.entry), read.content.stamp, " ".join(read.content.reason.split()))
