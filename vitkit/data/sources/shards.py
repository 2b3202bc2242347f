"""Shards, as WebDataset writes them: plain tar files whose members of one sample share their path up to the first dot.

A shard on a disk can seek: its members are listed once, from the headers alone, and each image is then read at its
offset. So a sample is an index as in any other source, and order, resuming, workers and ranks are exact.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data.annotations.annotation import Annotation, Members
from vitkit.data.omissions import Omissions
from vitkit.data.order import Labels
from vitkit.data.sources.kind import Kind
from vitkit.data.sources.sample_list import Columns, Listing
from vitkit.data.sources.source import END, SUFFIXES, Source, explain_omission
from vitkit.data.sources.tar import Member, list_members
from vitkit.support.errors import format_few
from vitkit.support.names import read_class_list
from vitkit.support.progress import track_progress

SUFFIX = ".tar"
NAMES = "classes.txt"


class Shards(Source):
    """Images in shards. Args: spans: the shard, offset and size of each image."""

    def __init__(
        self, shards: Sequence[str], names: Sequence[str], spans: np.ndarray, classes: Sequence[str], labels: Labels
    ) -> None:
        super().__init__(classes, labels)
        self.shards = shards
        self.names = names
        self.spans = spans

    def get_name(self, index: int) -> str:
        return f"{self.shards[self.spans[index, 0]]}/{self.names[index]}"

    def get_relative_name(self, index: int) -> str:
        return f"{os.path.basename(self.shards[int(self.spans[index, 0])])}/{self.names[index]}"

    def read_content(self, index: int) -> bytes:
        return self._read(index, 0)

    def count_bytes(self, index: int) -> int:
        return int(self.spans[index, 2])

    def read_end(self, index: int) -> bytes:
        return self._read(index, max(0, self.count_bytes(index) - END))

    def _read(self, index: int, start: int) -> bytes:
        # Opened each time, as image files are: no handle has to survive a fork, a pickle or a thousand shards.
        shard, offset, size = map(int, self.spans[index])
        with open(self.shards[shard], "rb", buffering=0) as file:
            return os.pread(file.fileno(), size - start, offset + start)


class Sample(NamedTuple):
    """The members of one sample. Args: place: its name in messages. annotation: the raw one."""

    place: str
    shard: int
    pictures: list[Member]
    annotation: object


@dataclass(kw_only=True)
class ShardListing(Listing):
    """Samples in shards."""

    shards: Sequence[str]
    samples: Sequence[Sample]
    empty: str = "shards must hold samples, got none"

    def leave_out(self, exclude: Sequence[str]) -> None:
        """Leave the samples as they are: they were left out when the members were listed."""

    def open_images(self, rows: Sequence[int]) -> Shards:
        samples = [self.samples[row] for row in rows]
        pictures = [sample.pictures[0] for sample in samples]
        spans = np.array([(sample.shard, *picture[1:]) for sample, picture in zip(samples, pictures, strict=True)])
        return Shards(self.shards, [picture.path for picture in pictures], spans, (), [-1] * len(samples))


def list_shards(name: str, annotation: Annotation, columns: Columns, exclude: Sequence[str]) -> ShardListing:
    return index_shards(expand_shards(name), annotation, columns, exclude)


def expand_shards(name: str) -> list[str]:
    """Return the shards of a name such as x/{000..099}.tar. Raises: ValueError if one does not exist."""
    shards = expand_braces(os.path.expanduser(name))
    if missing := [shard for shard in shards if not os.path.isfile(shard)]:
        raise ValueError(f"shards must exist, got {len(missing)} of {len(shards)} that do not: {format_few(missing)}")
    return shards


def index_shards(
    shards: Sequence[str], annotation: Annotation, columns: Columns, exclude: Sequence[str]
) -> ShardListing:
    """List the samples in shards. Labels are indices of the lines of classes.txt if it lies beside the first shard."""
    problems: list[str] = []
    omissions = Omissions()
    if len(columns) > 2:
        raise ValueError(f"columns must be two members of a shard's samples, got columns={list(columns)}")
    picture, other = (column or "" for column in columns)
    read_members = partial(annotation.read_members, column=other)
    kinds: Counter[str] = Counter()
    suffixes = f".{picture.lower()}", annotation.suffixes
    samples = list(_read_samples(shards, suffixes, read_members, kinds, problems, omissions, exclude))
    for odd, count in ((0, "none"), (2, "several")):
        if places := [sample.place for sample in samples if min(len(sample.pictures), 2) == odd]:
            problems.append(f"every sample must have one {annotation.sample}, got {count} in {format_few(places)}")
    classes = Path(shards[0]).parent / NAMES
    return ShardListing(
        title=format_few(shards, 1),
        places=[sample.place for sample in samples],
        annotations=[sample.annotation for sample in samples],
        problems=problems,
        class_names=read_class_list(classes) if classes.is_file() else (),
        shards=shards,
        samples=samples,
        omissions=omissions,
        hint=""
        if all(sample.pictures and sample.annotation for sample in samples)
        else describe_members(kinds, annotation),
    )


def describe_members(kinds: Counter[str], annotation: Annotation) -> str:
    """Return the names of the members that there are and that are recognised. Args: kinds: counts of extensions."""
    names = format_few((f".{kind} ({count:,})" for kind, count in kinds.most_common()), 6)
    if annotation.suffixes is not SUFFIXES:
        suffixes = " or ".join(annotation.suffixes)
        return (
            f"members are named {names}; a {annotation.sample} is named {suffixes}; name others by columns=[EXTENSION]"
        )
    return (
        f"members are named {names}; a picture is named .jpg, .png or as other image files, and its annotation "
        f"{annotation.members}; name others by columns=[PICTURE, LABEL or TEXT], such as [input.jpg, target.cls]"
    )


def expand_braces(name: str) -> list[str]:
    """Return the paths that braces stand for, in order: {000..012} counts with its zeros, {a,b} lists."""
    brace = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", name)
    if brace is None:
        return [name]
    first, last, items = (group or "" for group in brace.groups())
    if first and int(first) > int(last):
        raise ValueError(f"a range of shards must go upwards, got {brace[0]}; source={name}")
    width = len(first) if first.startswith("0") else 0
    parts = [f"{n:0{width}}" for n in range(int(first), int(last) + 1)] if first else items.split(",")
    return [path for part in parts for path in expand_braces(name[: brace.start()] + part + name[brace.end() :])]


def _read_samples(
    shards: Sequence[str],
    suffixes: tuple[str, Sequence[str]],
    read_members: Callable[[Members], object],
    kinds: Counter[str],
    problems: list[str],
    omissions: Omissions,
    exclude: Sequence[str],
) -> Iterator[Sample]:
    """Yield the samples. Args: suffixes: of the requested member that holds a sample's content, and of all others."""
    total = sum(map(os.path.getsize, shards))
    with track_progress((), "indexing shards", total) as bar:
        for number, shard in enumerate(shards):
            samples: dict[str, dict[str, Member]] = {}
            try:
                twice = _group_members(shard, samples, bar.update, omissions, exclude)
            except ValueError as error:
                problems.append(str(error))
                continue
            if twice:
                problems.append(f"members of a shard must have a name each, got twice in {shard}: {format_few(twice)}")
            with open(shard, "rb", buffering=0) as file:
                for key, parts in samples.items():
                    kinds.update(parts.keys())
                    contents = [part for kind, part in parts.items() if f".{kind}" == suffixes[0]]
                    contents = contents or [part for kind, part in parts.items() if f".{kind}" in suffixes[1]]
                    annotation = read_members(partial(_read_member, file.fileno(), parts))
                    yield Sample(f"{shard}/{key}", number, contents, annotation)


def _group_members(
    shard: str,
    samples: dict[str, dict[str, Member]],
    progress: Callable[[int], object],
    omissions: Omissions,
    exclude: Sequence[str],
) -> list[str]:
    """Add the members of a shard to `samples`; return those whose sample and extension are there already."""
    twice, position = [], 0
    folders: dict[str, str] = {}  # the reason for leaving out each, as there are many members in one
    for member in list_members(shard, omissions):
        progress(member.offset + member.size - position)
        position = member.offset + member.size
        folder, slash, name = member.path.rpartition("/")
        if folder not in folders:
            parents = accumulate(folder.split("/"), "{}/{}".format)
            folders[folder] = next(filter(None, (explain_omission(parent, exclude) for parent in parents)), "")
        stem, _, extension = name.partition(".")
        reason = folders[folder] or explain_omission(member.path, exclude)
        if not reason and not (stem and extension):
            reason = "members without an extension"
        if reason:
            omissions.add(reason, [f"{shard}/{member.path}"])
            continue
        parts = samples.setdefault(f"{folder}{slash}{stem}", {})
        if extension.lower() in parts:
            twice.append(member.path)
        parts[extension.lower()] = member
    return twice


def _read_member(file: int, parts: dict[str, Member], extension: str) -> bytes | None:
    part = parts.get(extension)
    return None if part is None else os.pread(file, part.size, part.offset)


def are_shards(name: str) -> bool:
    return name.lower().endswith(SUFFIX) and not Path(name).expanduser().is_dir()


SHARDS = Kind(f"shards ({SUFFIX})", are_shards, list_shards)
