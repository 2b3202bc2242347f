"""The pictures below folders, and the content of one."""

import hashlib
import os
import re
import stat
import time
from codecs import BOM_UTF8
from collections.abc import Container, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitkit.data.omissions import Omissions
from vitkit.data.preprocess import PictureError, decode_image
from vitkit.data.sources.source import SUFFIXES, choose_files, is_sequence
from vitkit.retrieval.samples import Sample, find_source, read_mtime, read_samples
from vitkit.support.errors import CONTROL
from vitkit.support.names import split_lines

CAPTION_SUFFIX = ".txt"  # of the file beside a picture: one caption a line
MAX_CAPTION_BYTES = 2**16  # a longer file holds another kind of text
NO_TIME = -1  # no file has it, so the next scan reads the file again
RECENT = " just now"  # at the end of a caption file's stamp: no scan makes this, so the next reads the file again
# A change within a tick of the file system's clock, 4 ms where Linux has 250 a second, leaves the time as it is.
TICK = 100_000_000  # ns


class Stamp(NamedTuple):
    """The bytes of a file and its time of change, in ns since 1970: if they are the same, it is not read again.

    Args: captions: the stamp of its caption file.
    """

    size: int
    mtime: int
    captions: str = ""


class Entry(NamedTuple):
    """A picture file, absolute, with the folder that was scanned. `trouble` is the reason if it cannot be read.

    In a source that is no folder, the file is the name of the `sample`, and the root that of the source.
    """

    file: str
    root: str
    stamp: Stamp
    trouble: str = ""
    sample: Sample | None = None

    @property
    def id(self) -> str:
        return hash_bytes(os.fsencode(self.file))


class Scan(NamedTuple):
    """The entries by their ids. `closed` are folders that could not be listed: nothing is known of their files."""

    entries: dict[str, Entry]
    closed: tuple[str, ...]
    omissions: Omissions


class Content(NamedTuple):
    """The hash of a file, its picture unless the hash is stored already, its captions, and the reason of a failure."""

    hash: str
    stamp: Stamp
    picture: Image.Image | None
    captions: tuple[str, ...]
    reason: str = ""
    note: str = ""


def hash_bytes(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def hash_caption(caption: str) -> str:
    """Return the hash of a caption, which no file can have."""
    return hashlib.blake2b(caption.encode("utf-8"), digest_size=16, person=b"caption").hexdigest()


def resolve_folders(folders: str | Path | Iterable[str | Path], *, gone: bool = False) -> tuple[str, ...]:
    """Return the outermost of the folders, with links resolved so that a folder has one path, and the other sources.

    Raises: ValueError that lists the folders that do not exist, unless they may be gone.
    """
    names = [str(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    others = {name: source for name in names if (source := find_source(name))}
    sources = sorted({*others.values()})
    paths = sorted({os.path.realpath(os.path.expanduser(name)) for name in names if name not in others}, key=len)
    if missing := [escape_path(path) for path in paths if not (gone or os.path.isdir(path))]:
        raise ValueError(
            f"folders must exist and be folders, got {', '.join(missing)}; vitkit index --forget removes their pictures"
        )
    outer: list[str] = []
    for path in paths:
        outer += [] if lies_below(path, outer) else [path]
    if not (outer or sources):
        raise ValueError("folders must be at least one, got none")
    return (*sorted(outer), *sources)


def lies_below(file: str, folders: Sequence[str]) -> bool:
    return any(file == folder or file.startswith(folder.rstrip("/") + "/") for folder in folders)


def escape_path(path: str) -> str:
    """Return a path as text of one line: control characters, and bytes that are not UTF-8, as \\xff."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return re.sub(CONTROL, lambda match: f"\\x{ord(match[0]):02x}", text)


def scan_folders(
    folders: Sequence[str],
    database: str = "",
    columns: tuple[str, str] | None = None,
    exclude: Sequence[str] = (),
) -> Scan:
    """Return the pictures below folders. Hidden ones are left out, and links to folders are not followed.

    Args:
        database: a folder that is left out.
        columns, exclude: as in `read_samples`.
    """
    entries: dict[str, Entry] = {}
    closed: list[OSError] = []
    omissions = Omissions()
    for root in folders:
        if not os.path.isdir(root) or find_source(root):
            scan_samples(root, columns, exclude, entries, omissions)
            continue
        for parent, inner, files in os.walk(root, onerror=closed.append):
            inner[:] = [name for name in inner if os.path.join(parent, name) != database]
            suffixes = (CAPTION_SUFFIX, *SUFFIXES)
            chosen = choose_files(parent, inner, files, suffixes, "images or texts", omissions, exclude)
            for entry in list_entries(root, parent, chosen, omissions):
                entries[entry.id] = entry
    for error in closed:
        root = next(root for root in folders if lies_below(error.filename, [root]))
        entry = Entry(error.filename, root, Stamp(0, NO_TIME), f"folder: {error.strerror}")
        entries[entry.id] = entry
    return Scan(entries, tuple(error.filename for error in closed), omissions)


def scan_samples(
    root: str,
    columns: tuple[str, str] | None,
    exclude: Sequence[str],
    entries: dict[str, Entry],
    omissions: Omissions,
) -> None:
    """Add the samples of a source that is no folder of images."""
    samples = read_samples(root, columns, exclude)
    omissions.update(samples.omissions)
    for name, sample in samples.by_name.items():
        captions = f"{hash_bytes(repr(sample.captions).encode())} 0 0" if sample.captions else ""
        try:
            stamp = Stamp(sample.source.count_bytes(sample.index), read_mtime(name), captions)
            entry = Entry(name, root, stamp, sample=sample)
        except (OSError, PictureError) as error:
            entry = Entry(name, root, Stamp(0, NO_TIME), str(error), sample)
        entries[entry.id] = entry


def list_entries(root: str, parent: str, files: Sequence[str], omissions: Omissions) -> Iterator[Entry]:
    """Yield the pictures among the pictures and captions of a folder; count the captions without a picture."""
    texts = {name[: -len(CAPTION_SUFFIX)]: name for name in files if name.lower().endswith(CAPTION_SUFFIX)}
    pictures: set[str] = set()
    for name in files:
        stem, suffix = os.path.splitext(name)
        if suffix.lower() == CAPTION_SUFFIX:
            continue
        pictures.add(stem)
        file = os.path.join(parent, name)
        try:
            status = os.stat(file)
        except OSError as error:
            yield Entry(file, root, Stamp(0, NO_TIME), error.strerror or "cannot be read")
            continue
        regular = stat.S_ISREG(status.st_mode)
        captions = make_caption_stamp(os.path.join(parent, texts[stem])) if stem in texts else ""
        yield Entry(file, root, Stamp(status.st_size, get_mtime(status), captions), "" if regular else "not a file")
    lone = [os.path.join(parent, text) for stem, text in texts.items() if stem not in pictures]
    omissions.add("texts without a picture of their name", lone)


def get_mtime(status: os.stat_result) -> int:
    return max(-(2**62), min(status.st_mtime_ns, 2**62))  # the database's time stamps have 64 bits


def make_caption_stamp(path: str) -> str:
    """Return the suffix, size and time of a caption file; "" if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    regular = stat.S_ISREG(status.st_mode)
    return f"{os.path.splitext(path)[1]} {status.st_size} {get_mtime(status)}" if regular else ""


def read_content(entry: Entry, hashes: Container[str]) -> Content:
    """Read the files of an entry. Args: hashes: of pictures that are not decoded, as they are in the collection."""
    if entry.trouble:
        return Content("", entry.stamp, None, (), entry.trouble)
    if entry.sample:
        return read_sample(entry, entry.sample, hashes)
    try:
        with open(entry.file, "rb") as file:
            size, mtime = (status := os.fstat(file.fileno())).st_size, get_mtime(status)
            data = file.read()
    except OSError as error:  # which may pass without a change of the file
        return Content("", entry.stamp._replace(mtime=NO_TIME), None, (), error.strerror or str(error))
    captions, caption_stamp, note = read_caption_file(entry)
    latest = max([mtime, *map(int, caption_stamp.split()[2:])])
    stamp = Stamp(size, mtime, caption_stamp if time.time_ns() - latest > TICK else caption_stamp + RECENT)
    if (key := hash_bytes(data)) in hashes:
        return Content(key, stamp, None, captions, note=note)
    name = escape_path(entry.file)
    if is_sequence(BytesIO(data)):
        note = "; ".join(filter(None, (note, f"{name} has several pages or frames, of which the first was embedded")))
    try:
        return Content(key, stamp, decode_image(data, name), captions, note=note)
    except PictureError as error:  # the path is listed beside the reason, so the decoder's message is enough
        reason = str(error).partition(f"picture={name} (")[2].rpartition("); ")[0]
        return Content(key, stamp, None, (), reason or str(error))


def read_sample(entry: Entry, sample: Sample, hashes: Container[str]) -> Content:
    """Read a sample of a source that is no folder."""
    try:
        key = hash_bytes(sample.source.read_content(sample.index))
        picture = None if key in hashes else sample.source.read_image(sample.index)
    except (OSError, PictureError) as error:
        return Content("", entry.stamp._replace(mtime=NO_TIME), None, sample.captions, str(error))
    return Content(key, entry.stamp, picture, sample.captions)


def read_caption_file(entry: Entry) -> tuple[tuple[str, ...], str, str]:
    """Return the captions beside a picture, their file's stamp ("" to read it again next time), and a note."""
    if not entry.stamp.captions:
        return (), "", ""
    path = os.path.splitext(entry.file)[0] + entry.stamp.captions.split()[0]
    name, stamp = escape_path(path), make_caption_stamp(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CAPTION_BYTES + 1)
    except OSError as error:  # the picture is indexed all the same
        return (), "", f"{name} could not be read: {error.strerror or error}"
    if len(data) > MAX_CAPTION_BYTES:
        return (), stamp, f"{name} is longer than {MAX_CAPTION_BYTES} bytes, so it was not read as captions"
    text = data.decode("utf-8-sig", "replace")
    valid = text.encode("utf-8") == data.removeprefix(BOM_UTF8)
    note = "" if valid else f"{name} is not in UTF-8: its invalid bytes became \N{REPLACEMENT CHARACTER}"
    lines = (" ".join(re.sub(CONTROL, " ", line).split()) for line in split_lines(text))
    return tuple(dict.fromkeys(caption for caption in lines if caption)), stamp, note
