"""What has to be done so that a collection is what its folders hold."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from vitkit.retrieval.scan import AGAIN, Entry, Scan, below, escape_path
from vitkit.retrieval.store import Known


class Plan(NamedTuple):
    """`todo` has to be read, `gone` are ids of what is no longer there; the rest is as it was, readable or not."""

    todo: tuple[Entry, ...]
    gone: tuple[str, ...]
    unchanged: int
    failing: int


def plan(found: Scan, known: Known, folders: Sequence[str], rehash: bool = False) -> Plan:
    """Args: folders: what was scanned; of other folders nothing is gone. rehash: read also what looks unchanged."""
    todo = tuple(entry for id, entry in found.entries.items() if rehash or not settled(id, entry, known))
    looked = {entry.id for entry in todo}
    unchanged = sum(id in known.items and id not in looked for id in found.entries)
    roots = {escape_path(folder) for folder in folders}
    gone = (
        id
        for id, stored in {**known.items, **known.failures}.items()
        if id not in found.entries
        and (below(file := os.fsdecode(stored.file), folders) or stored.root in roots)
        and not below(file, found.closed)
    )
    return Plan(todo, tuple(gone), unchanged, len(found.entries) - len(todo) - unchanged)


def settled(id: str, entry: Entry, known: Known) -> bool:
    """Whether it is known, as it is now, to be readable or not; both at once is what a killed process may leave."""
    items, failures = known.items.get(id), known.failures.get(id)
    one = (items or failures) if items is None or failures is None else None
    return one is not None and one.stamp == entry.stamp and entry.stamp.mtime != AGAIN
