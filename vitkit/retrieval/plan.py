"""The work that brings a collection up to date with its folders."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from vitkit.retrieval.scan import NO_TIME, Entry, Scan, escape_path, lies_below
from vitkit.retrieval.store import Snapshot


class Plan(NamedTuple):
    """The entries to read, the ids to delete, and the numbers of unchanged entries, readable and unreadable."""

    entries: tuple[Entry, ...]
    gone: tuple[str, ...]
    unchanged: int
    unreadable: int


def make_plan(scan: Scan, snapshot: Snapshot, folders: Sequence[str], rehash: bool = False) -> Plan:
    """Compare a scan with the store. Args: folders: those of the scan; others stay. rehash: read all entries."""
    entries = tuple(entry for id, entry in scan.entries.items() if rehash or not is_unchanged(id, entry, snapshot))
    ids = {entry.id for entry in entries}
    unchanged = sum(id in snapshot.items and id not in ids for id in scan.entries)
    roots = {escape_path(folder) for folder in folders}
    gone = (
        id
        for id, stored in {**snapshot.items, **snapshot.failures}.items()
        if id not in scan.entries
        and (lies_below(file := os.fsdecode(stored.file), folders) or stored.root in roots)
        and not lies_below(file, scan.closed)
    )
    return Plan(entries, tuple(gone), unchanged, len(scan.entries) - len(entries) - unchanged)


def is_unchanged(id: str, entry: Entry, snapshot: Snapshot) -> bool:
    """Return whether an entry is stored with the same stamp. A killed process may leave it in both tables: then not."""
    item, failure = snapshot.items.get(id), snapshot.failures.get(id)
    stored = (item or failure) if item is None or failure is None else None
    return stored is not None and stored.stamp == entry.stamp and entry.stamp.mtime != NO_TIME
