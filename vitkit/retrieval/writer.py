"""Embedding of entries, and commits of the rows that they become."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from vitkit.data.pictures import iterate_loader
from vitkit.retrieval.database_errors import explain_write_errors
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.loader import EntryBatch, EntryBatches, LoadedEntry, make_loader
from vitkit.retrieval.scan import Entry, escape_path, hash_caption, lies_below
from vitkit.retrieval.store import Failure, Item, Snapshot, Store
from vitkit.support.errors import escape_surrogates


class IndexReading(NamedTuple):
    """Numbers of pictures in a batch, of processes that read, and of entries in a commit."""

    batch: int = 32
    workers: int = 0
    commit: int = 512

    def check(self) -> None:
        if self.batch < 1 or self.workers < 0 or self.commit < 1:
            raise ValueError(f"batch and commit must be at least 1 and workers at least 0, got {self}")


class IndexJob(NamedTuple):
    """The entries to read, embed and store in the collection at `path`."""

    path: str
    embedder: Embedder
    entries: Sequence[Entry]
    snapshot: Snapshot
    reading: IndexReading

    def select_rank(self, rank: int, world: int) -> "IndexJob":
        """Return the job of one process of `world`."""
        return self._replace(entries=self.entries[rank::world])

    def make_batches(self) -> EntryBatches:
        hashes = frozenset(self.snapshot.rows)
        return EntryBatches(self.entries, self.embedder.preprocess, hashes, self.reading.batch)


@dataclass
class IndexCounts:
    """Pictures and captions embedded; entries whose vector was stored already; failures; truncated captions."""

    encoded: int = 0
    captions: int = 0
    reused: int = 0
    failed: int = 0
    cut: int = 0
    notes: list[str] = field(default_factory=list)

    def __add__(self, other: "IndexCounts") -> "IndexCounts":
        ours, theirs = asdict(self), asdict(other)
        return IndexCounts(**{name: ours[name] + theirs[name] for name in ours})


class IndexWriter:
    """A writer that commits every `reading.commit` entries, and the rest when it is flushed."""

    def __init__(self, job: IndexJob) -> None:
        self.job = job
        self.store = Store(job.path)
        self.counts = IndexCounts()
        self.items: list[Item] = []
        self.vectors: list[np.ndarray] = []
        self.failures: list[Failure] = []
        self.entries = 0

    def add(self, batch: EntryBatch) -> None:
        readable = [entry for entry in batch.entries if not entry.content.reason]
        self.failures += [make_failure(entry) for entry in batch.entries if entry.content.reason]
        self.counts.failed += len(batch.entries) - len(readable)
        self.counts.notes += [entry.content.note for entry in batch.entries if entry.content.note]
        if readable:
            self.add_rows(readable, self.job.embedder.embed_pixels(batch.pixels) if len(batch.pixels) else None)
        self.entries += len(batch.entries)
        if self.entries >= self.job.reading.commit:
            self.flush()

    def add_rows(self, entries: Sequence[LoadedEntry], pictures: np.ndarray | None) -> None:
        """Add a row for each picture and each caption. Args: pictures: vectors of those that were decoded."""
        snapshot, embedder = self.job.snapshot, self.job.embedder
        texts = {hash_caption(caption): caption for entry in entries for caption in entry.content.captions}
        old = [entry.content.hash for entry in entries if entry.row < 0]
        stored = self.store.read_vectors([*old, *(texts.keys() & snapshot.rows.keys())], snapshot)
        new = {key: caption for key, caption in texts.items() if key not in stored}
        embeddings = embedder.embed_texts([*new.values()])
        captions = dict(zip(new, embeddings.vectors, strict=True))
        self.counts.encoded += len(entries) - len(old)
        self.counts.reused += len(old)
        self.counts.captions += len(new)
        self.counts.cut += embeddings.cut
        for entry in entries:
            width, height = entry.width, entry.height
            if entry.row >= 0 and pictures is not None:
                vector = pictures[entry.row]
            else:
                vector, width, height = stored[entry.content.hash]
            item = make_item(entry, width, height)
            self.items.append(item)
            self.vectors.append(vector)
            for line, caption in enumerate(entry.content.captions, 1):
                key = hash_caption(caption)
                self.items.append(item._replace(line=line, caption=caption, hash=key))
                self.vectors.append(captions[key] if key in captions else stored[key].vector)

    def flush(self) -> None:
        with explain_write_errors(self.job.path):
            if self.items:
                self.store.commit_items(self.items, np.stack(self.vectors), self.job.snapshot)
            self.store.commit_failures(self.failures, self.job.snapshot)
        self.items, self.vectors, self.failures, self.entries = [], [], [], 0


def embed_here(job: IndexJob) -> IndexCounts:
    """Embed all entries in this process, with a progress bar if stderr is a terminal."""
    writer = IndexWriter(job)
    style = {"unit": " pictures", "delay": 1, "disable": None, "leave": False, "dynamic_ncols": True}
    with tqdm(total=len(job.entries), desc="index", **style) as progress:
        for batch in iterate_loader(make_loader(job.make_batches(), job.reading.workers)):
            writer.add(batch)
            progress.update(len(batch.entries))
    writer.flush()
    return writer.counts


def locate_entry(entry: Entry) -> tuple[str, str, str, bytes]:
    """Return an entry's id, root, path relative to the root, and file."""
    inside = entry.sample is None or lies_below(entry.file, [entry.root])
    relative = os.path.relpath(entry.file, entry.root) if inside else entry.file
    return entry.id, escape_path(entry.root), escape_path(relative), os.fsencode(entry.file)


def make_item(entry: LoadedEntry, width: int, height: int) -> Item:
    captions, place = "\n".join(entry.content.captions), locate_entry(entry.entry)
    return Item(*place, 0, captions, entry.content.hash, entry.content.stamp, width, height)


def make_failure(entry: LoadedEntry) -> Failure:
    reason = escape_surrogates(" ".join(entry.content.reason.split()))
    return Failure(*locate_entry(entry.entry), entry.content.stamp, reason)
