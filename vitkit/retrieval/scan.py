"""Which pictures lie below folders, and what was read of one."""

import hashlib
import os
import re
import stat
import time
from codecs import BOM_UTF8
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitkit.data.omissions import Omissions
from vitkit.data.preprocess import PictureError, decode
from vitkit.data.sources.source import SUFFIXES, omit_files
from vitkit.retrieval.samples import Sample, find_source, last_change, read_samples

CAPTIONS = ".txt"  # beside a picture: one caption a line
LONGEST = 2**16  # bytes of captions; what is longer is another kind of text
CONTROL = r"[\x00-\x1f\x7f-\x9f]"  # could move a terminal's cursor
LOST = "what is not is \N{REPLACEMENT CHARACTER} in its captions"
FORGET = "until vitkit index --forget takes it out"
AGAIN = -1  # a time that no file has: look at it again next time
FRESH = " just now"  # behind the mark of captions, where no scan has it: look at it again next time
# A change within a tick of the file system's clock, 4 ms where Linux has 250 a second, leaves the time as it is.
TICK = 100_000_000  # ns


class Stamp(NamedTuple):
    """What tells, without reading, that a file has not changed: its bytes and ns since 1970, of it and its captions."""

    size: int
    mtime: int
    beside: str = ""


class Entry(NamedTuple):
    """A picture file, absolute, with the folder that it was found below. What is wrong with it is `trouble`.

    Of a source that is no folder the file is the name of the `sample`, and the root that of the source.
    """

    file: str
    root: str
    stamp: Stamp
    trouble: str = ""
    sample: Sample | None = None

    @property
    def id(self) -> str:
        return digest(os.fsencode(self.file))


class Scan(NamedTuple):
    """`closed` are folders that could not be listed; nothing is known of what lies below."""

    entries: dict[str, Entry]
    closed: tuple[str, ...]
    omissions: Omissions


class Content(NamedTuple):
    """A file's hash, and its picture where that hash was not known before, or why there is none."""

    hash: str
    stamp: Stamp
    picture: Image.Image | None
    captions: tuple[str, ...]
    reason: str = ""
    note: str = ""


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def of_text(caption: str) -> str:
    """The hash of a caption, which no file has."""
    return hashlib.blake2b(caption.encode("utf-8"), digest_size=16, person=b"caption").hexdigest()


def absolute(folders: str | Path | Iterable[str | Path], *, gone: bool = False) -> tuple[str, ...]:
    """The outermost of the folders, without links, so that one folder has one path; and other sources.

    Raises: ValueError that lists those that do not exist, unless they may be gone.
    """
    names = [str(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    others = {name: source for name in names if (source := find_source(name))}
    sources = sorted({*others.values()})
    found = sorted({os.path.realpath(os.path.expanduser(name)) for name in names if name not in others}, key=len)
    if absent := [escape_path(folder) for folder in found if not (gone or os.path.isdir(folder))]:
        raise ValueError(
            f"folders must exist and be folders, got {', '.join(absent)}; what was indexed of them stays {FORGET}"
        )
    outer: list[str] = []
    for folder in found:
        outer += [] if below(folder, outer) else [folder]
    if not (outer or sources):
        raise ValueError("folders must be at least one, got none")
    return (*sorted(outer), *sources)


def below(file: str, folders: Sequence[str]) -> bool:
    return any(file == folder or file.startswith(folder.rstrip("/") + "/") for folder in folders)


def escape_path(path: str) -> str:
    """A path as text of one line: bytes that are no UTF-8, and control characters, as \\xff."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return re.sub(CONTROL, lambda found: f"\\x{ord(found[0]):02x}", text)


def scan(folders: Sequence[str], database: str = "") -> Scan:
    """The pictures below, by their ids. Hidden ones do not count, and links to folders are not followed.

    Args: database: a folder that may lie below, and is passed over.
    """
    entries: dict[str, Entry] = {}
    closed: list[OSError] = []
    omissions = Omissions()
    for root in folders:
        if not os.path.isdir(root) or find_source(root):
            scan_samples(root, entries, omissions)
            continue
        for parent, inner, files in os.walk(root, onerror=closed.append):
            inner[:] = [name for name in inner if os.path.join(parent, name) != database]
            omit_files(parent, inner, files, (CAPTIONS, *SUFFIXES), "images or texts", omissions)
            inner[:] = sorted(name for name in inner if name[0] != ".")
            for entry in listed(root, parent, sorted(files)):
                entries[entry.id] = entry
    for error in closed:
        entry = Entry(error.filename, next(root for root in folders if below(error.filename, [root])), Stamp(0, AGAIN))
        entries[entry.id] = entry._replace(trouble=f"folder: {error.strerror}")
    return Scan(entries, tuple(error.filename for error in closed), omissions)


def scan_samples(root: str, entries: dict[str, Entry], omissions: Omissions) -> None:
    """Add the samples of a source that is no folder of images."""
    samples = read_samples(root)
    omissions.update(samples.omissions)
    for name, sample in samples.by_name.items():
        beside = f"{digest(repr(sample.captions).encode())} 0 0" if sample.captions else ""
        try:
            stamp = Stamp(sample.source.length(sample.index), last_change(name), beside)
            entry = Entry(name, root, stamp, sample=sample)
        except (OSError, PictureError) as error:
            entry = Entry(name, root, Stamp(0, AGAIN), str(error), sample)
        entries[entry.id] = entry


def listed(root: str, parent: str, files: Sequence[str]) -> Iterator[Entry]:
    beside = {name[: -len(CAPTIONS)]: name for name in files if name.lower().endswith(CAPTIONS)}
    for name in files:
        stem, suffix = os.path.splitext(name)
        if name[0] == "." or suffix.lower() not in SUFFIXES:
            continue
        file = os.path.join(parent, name)
        try:
            found = os.stat(file)
        except OSError as error:
            yield Entry(file, root, Stamp(0, AGAIN), error.strerror or "cannot be read")
            continue
        regular = stat.S_ISREG(found.st_mode)
        captions = mark(os.path.join(parent, beside[stem])) if stem in beside else ""
        yield Entry(file, root, Stamp(found.st_size, when(found), captions), "" if regular else "not a file")


def when(found: os.stat_result) -> int:
    return max(-(2**62), min(found.st_mtime_ns, 2**62))  # what a time stamp of 64 bits can hold


def mark(captions: str) -> str:
    """What tells that a file of captions has not changed; "" where there is none."""
    try:
        found = os.stat(captions)
    except OSError:
        return ""
    return f"{os.path.splitext(captions)[1]} {found.st_size} {when(found)}" if stat.S_ISREG(found.st_mode) else ""


def content(entry: Entry, known: Container[str]) -> Content:
    """What is in the files of an entry; a picture whose hash is known is not decoded."""
    if entry.trouble:
        return Content("", entry.stamp, None, (), entry.trouble)
    if entry.sample:
        return sample_content(entry, entry.sample, known)
    try:
        with open(entry.file, "rb") as file:
            size, mtime = (found := os.fstat(file.fileno())).st_size, when(found)
            held = file.read()
    except OSError as error:  # whatever it is, it may pass without a change of the file
        return Content("", entry.stamp._replace(mtime=AGAIN), None, (), error.strerror or str(error))
    captions, beside, note = captions_of(entry)
    latest = max([mtime, *map(int, beside.split()[2:])])
    stamp = Stamp(size, mtime, beside if time.time_ns() - latest > TICK else beside + FRESH)
    if (hashed := digest(held)) in known:
        return Content(hashed, stamp, None, captions, note=note)
    name = escape_path(entry.file)
    try:
        return Content(hashed, stamp, decode(held, name), captions, note=note)
    except PictureError as error:  # of which the decoder's own words are enough beside the path
        reason = str(error).partition(f"picture={name} (")[2].removesuffix("); repair or remove it")
        return Content(hashed, stamp, None, (), reason or str(error))


def sample_content(entry: Entry, sample: Sample, known: Container[str]) -> Content:
    """What is in a sample of a source that is no folder."""
    try:
        hashed = digest(sample.source.content(sample.index))
        picture = None if hashed in known else sample.source.picture(sample.index)
    except (OSError, PictureError) as error:
        return Content("", entry.stamp._replace(mtime=AGAIN), None, sample.captions, str(error))
    return Content(hashed, entry.stamp, picture, sample.captions)


def captions_of(entry: Entry) -> tuple[tuple[str, ...], str, str]:
    """The captions beside a picture, their file's mark ("" to look again next time), and what has to be said."""
    if not entry.stamp.beside:
        return (), "", ""
    path = os.path.splitext(entry.file)[0] + entry.stamp.beside.split()[0]
    beside = mark(path)
    try:
        with open(path, "rb") as file:
            held = file.read(LONGEST + 1)
    except OSError as error:  # which the picture can do nothing about
        return (), "", f"{escape_path(path)} could not be read: {error.strerror or error}"
    if len(held) > LONGEST:
        return (), beside, f"{escape_path(path)} is longer than {LONGEST} bytes, and was not taken for captions"
    text = held.decode("utf-8-sig", "replace")
    note = "" if text.encode("utf-8") == held.removeprefix(BOM_UTF8) else f"{escape_path(path)} is not in UTF-8: {LOST}"
    lines = (" ".join(re.sub(CONTROL, " ", line).split()) for line in text.splitlines())
    return tuple(dict.fromkeys(caption for caption in lines if caption)), beside, note
