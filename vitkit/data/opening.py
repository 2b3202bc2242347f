"""What the name of a source means, whether labels or captions are wanted of its pictures."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from vitkit.support.errors import near

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class Kinds(Generic[Opened]):
    """What opens each kind of source. Args: more: what else a name may be."""

    built_in: Mapping[str, Callable[[], Opened]]
    hub: Callable[[str], Opened]
    folder: Callable[[Path], Opened]
    shards: Callable[[Sequence[str]], Opened]
    table: Callable[[Path], Opened]
    more: str = ""


def opened(name: str, kinds: Kinds[Opened]) -> Opened:
    """Raises: ValueError, one line that says what is wrong and what is possible."""
    from vitkit.data import hub, shards, tables

    if name in kinds.built_in:
        return kinds.built_in[name]()
    if name.startswith(hub.SCHEME):
        return kinds.hub(name)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return kinds.folder(path)
    if name.lower().endswith(shards.SUFFIX):
        return kinds.shards(shards.named(name))
    if path.is_file() and path.suffix.lower() in tables.SUFFIXES:
        return kinds.table(path)
    told = f"a folder, a table ({' '.join(tables.SUFFIXES)}), {kinds.more}shards ({shards.SUFFIX}), {hub.SCHEME}NAME"
    if os.sep in name or (name and path.exists()):
        raise ValueError(f"source must be {told} that exists, got source={name}{beside(path)}")
    known = ", ".join(kinds.built_in)
    raise ValueError(f"source must be {told} or one of {known}, got source={name}{near(name, kinds.built_in)}")


def tables_and_shards(root: Path) -> tuple[list[str], list[str]]:
    """Of a folder that is a source itself."""
    from vitkit.data import shards, tables

    files = sorted(entry.name for entry in os.scandir(root) if entry.name[0] != ".")
    listed = [file for file in files if file in {f"metadata{suffix}" for suffix in tables.SUFFIXES}]
    return listed, [file for file in files if file.endswith(shards.SUFFIX)]


def beside(path: Path) -> str:
    """The existing path that one with a misspelt end may mean."""
    if path.exists() or not path.parent.is_dir():
        return ""
    return near(str(path), [str(path.parent / entry) for entry in os.listdir(path.parent)])
