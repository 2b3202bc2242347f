"""Shards, as WebDataset writes them: plain tar files whose members of one sample share their path up to the first dot.

A shard on a disk can seek: its members are found once, from the headers alone, and each picture is then read where it
lies. So a sample is an index as in any other source, and order, resuming, workers and ranks are exact.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data.annotations.labels import labelled
from vitkit.data.order import Labels
from vitkit.data.sources.source import END, SUFFIXES, Source
from vitkit.data.sources.tar import Member, members
from vitkit.support.errors import few
from vitkit.support.progress import progress

SUFFIX = ".tar"
NAMES = "classes.txt"


class Shards(Source):
    """Args: spans: of each picture the shard's number, where its bytes begin, and how many they are."""

    def __init__(
        self, shards: Sequence[str], names: Sequence[str], spans: np.ndarray, classes: Sequence[str], labels: Labels
    ) -> None:
        super().__init__(classes, labels)
        self.shards = shards
        self.names = names
        self.spans = spans

    def name(self, index: int) -> str:
        return f"{self.shards[self.spans[index, 0]]}/{self.names[index]}"

    def content(self, index: int) -> bytes:
        return self._read(index, 0)

    def length(self, index: int) -> int:
        return int(self.spans[index, 2])

    def end(self, index: int) -> bytes:
        return self._read(index, max(0, self.length(index) - END))

    def _read(self, index: int, start: int) -> bytes:
        # Opened anew each time, as picture files are: no handle has to survive a fork, a pickle or a thousand shards.
        shard, offset, size = map(int, self.spans[index])
        with open(self.shards[shard], "rb", buffering=0) as file:
            return os.pread(file.fileno(), size - start, offset + start)


class Sample(NamedTuple):
    """Args: place: what a message calls it. told: what its other members say of the picture."""

    place: str
    shard: int
    pictures: list[Member]
    told: object


Telling = Callable[[Callable[[str], bytes | None]], object]  # from the content of a member with an extension, if any


def expand_shards(name: str) -> list[str]:
    """The shards that `name` stands for, such as x/{000..099}.tar. Raises: ValueError where one does not exist."""
    shards = expand(os.path.expanduser(name))
    if missing := [shard for shard in shards if not os.path.isfile(shard)]:
        raise ValueError(f"shards must exist, got {len(missing)} of {len(shards)} that do not: {few(missing)}")
    return shards


def index_shards(shards: Sequence[str], column: str) -> Shards:
    """Find the samples in shards that exist.

    A label is the text of a sample's .cls, else the value of `column` in its .json, else its .txt. Where classes.txt
    lies beside the shards, labels are indices of its lines.

    Raises: ValueError, one line that lists everything wrong with the shards.
    """
    samples, problems = read_samples(shards, partial(_label, column=column))
    places, told = [sample.place for sample in samples], [sample.told for sample in samples]
    beside = Path(shards[0]).parent / NAMES
    lines = beside.read_text("utf-8-sig").splitlines() if beside.is_file() else []
    classes, labels, wrong = labelled(told, places, [line for line in lines if line])
    problems += wrong if samples or problems else []
    return pictured(shards, samples, problems, classes, labels)


def read_samples(shards: Sequence[str], tell: Telling) -> tuple[list[Sample], list[str]]:
    """The samples in shards, and what is wrong with them."""
    problems: list[str] = []
    samples = list(_samples(shards, tell, problems))
    for odd, told in ((0, "none"), (2, "several")):
        if found := [sample.place for sample in samples if min(len(sample.pictures), 2) == odd]:
            problems.append(f"every sample must have one picture, got {told} in {few(found)}")
    return samples, problems


def pictured(
    shards: Sequence[str], samples: Sequence[Sample], problems: list[str], classes: Sequence[str], labels: Labels
) -> Shards:
    """The pictures of samples. Raises: ValueError for the problems."""
    if not samples and not problems:
        problems = ["shards must hold samples, got none"]
    if problems:
        raise ValueError(f"{'; '.join(problems)}; source={few(shards, 1)}")
    pictures = [sample.pictures[0] for sample in samples]
    spans = np.array([(sample.shard, *picture[1:]) for sample, picture in zip(samples, pictures, strict=True)])
    return Shards(shards, [picture.path for picture in pictures], spans, classes, labels)


def expand(name: str) -> list[str]:
    """Every path that braces stand for, in order: {000..012} counts with its zeros, {a,b} lists."""
    brace = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", name)
    if brace is None:
        return [name]
    first, last, listed = (group or "" for group in brace.groups())
    if first and int(first) > int(last):
        raise ValueError(f"a range of shards must go upwards, got {brace[0]}; source={name}")
    width = len(first) if first.startswith("0") else 0
    parts = [f"{n:0{width}}" for n in range(int(first), int(last) + 1)] if first else listed.split(",")
    return [path for part in parts for path in expand(name[: brace.start()] + part + name[brace.end() :])]


def _samples(shards: Sequence[str], tell: Telling, problems: list[str]) -> Iterator[Sample]:
    total = sum(map(os.path.getsize, shards))
    with progress((), "indexing shards", total) as bar:
        for number, shard in enumerate(shards):
            found: dict[str, dict[str, Member]] = {}
            try:
                twice = _group(shard, found, bar.update)
            except ValueError as error:
                problems.append(str(error))
                continue
            if twice:
                problems.append(f"members of a shard must have a name each, got twice in {shard}: {few(twice)}")
            with open(shard, "rb", buffering=0) as file:
                for key, parts in found.items():
                    pictures = [part for kind, part in parts.items() if f".{kind}" in SUFFIXES]
                    told = tell(partial(_member, file.fileno(), parts))
                    yield Sample(f"{shard}/{key}", number, pictures, told)


def _group(shard: str, found: dict[str, dict[str, Member]], tell: Callable[[int], object]) -> list[str]:
    """Add the members of a shard by sample and extension; those that came before are returned."""
    twice, told = [], 0
    for member in members(shard):
        tell(member.offset + member.size - told)
        told = member.offset + member.size
        folder, slash, name = member.path.rpartition("/")
        stem, _, extension = name.partition(".")
        if not (stem and extension):  # hidden files, and what has no extension
            continue
        parts = found.setdefault(f"{folder}{slash}{stem}", {})
        if extension.lower() in parts:
            twice.append(member.path)
        parts[extension.lower()] = member
    return twice


def _member(file: int, parts: dict[str, Member], extension: str) -> bytes | None:
    part = parts.get(extension)
    return None if part is None else os.pread(file, part.size, part.offset)


def _label(content: Callable[[str], bytes | None], column: str) -> object:
    for extension in ("cls", "json", "txt"):
        if (found := content(extension)) is not None:
            told = parse_json(found) if extension == "json" else text(found)
            return told.get(column) if isinstance(told, dict) else told
    return None


def parse_json(content: bytes) -> dict[str, object] | Exception:
    """A JSON object; an exception, which is neither label nor caption, where it is none."""
    try:
        found = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return error
    return found if isinstance(found, dict) else TypeError(f"a JSON object is needed, got {type(found).__name__}")


def text(content: bytes) -> str | ValueError:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return ValueError("not in UTF-8")
