"""Texts as one row of ids, in memory or, of large corpora, in a file that is mapped into memory."""

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Shaped

from vitkit.data.omissions import Omissions
from vitkit.data.sources.source import Source, hash_content
from vitkit.data.tokenizer import BYTES, Tokenizer, format_tokenizer
from vitkit.support.progress import track_progress

MAPPED = 2**24  # bytes of texts from which on their ids are kept in a file
PORTION = 2**20  # characters that are encoded at a time


class Document(NamedTuple):
    """The bytes of a text, and the digest of its content in a source, where line ends may be others."""

    size: int
    digest: int


class TokenStream:
    """The ids of texts in a row, each behind the id that starts a text.

    Args:
        samples: the texts, in their order in the row.
        content: the ids, or the file that holds them.
        start: the id in front of each text: the vocabulary's begin, else its end, which then stands between two texts.
    """

    def __init__(self, samples: Sequence[int], content: np.ndarray | Path, kind: np.dtype, start: int) -> None:
        self.samples, self.content, self.kind, self.start = samples, content, kind, start
        self.starts = np.flatnonzero(self.ids == start)

    @property
    def ids(self) -> Shaped[np.ndarray, " L"]:
        # Mapped anew where it is used: a map that is sent to another process becomes a copy.
        if isinstance(self.content, Path):
            return np.memmap(self.content, self.kind, "r")
        return self.content

    def __len__(self) -> int:
        return len(self.content) if isinstance(self.content, np.ndarray) else len(self.ids)

    def read_ids(self, first: int, count: int) -> Int64[np.ndarray, " n"]:
        """Return ids from the first on; behind the last one the row begins again."""
        ids = self.ids
        return ids[np.arange(first, first + count) % len(ids)].astype(np.int64)

    def find_sample(self, place: int) -> int:
        """Return the text that an id of the row belongs to."""
        return self.samples[int(np.searchsorted(self.starts, place % len(self), "right")) - 1]


def read_document(source: Source, sample: int) -> str:
    r"""Return a text, with \n at the end of each line. Raises: ValueError if it cannot be read."""
    return _decode(_read_content(source, sample), source.get_name(sample))


def _read_content(source: Source, sample: int) -> bytes:
    try:
        return source.read_content(sample)
    except OSError as error:
        raise ValueError(f"text must be readable, got {source.get_name(sample)} ({error})") from None


def _decode(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"byte {content[error.start]:#04x} at {error.start:,}"
        raise ValueError(f"text must be in UTF-8, got {reason} in {name}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def scan_documents(source: Source, samples: Sequence[int], omissions: Omissions) -> dict[int, Document]:
    """Read texts once, and return those that are not blank; count the others, and those that cannot be read."""
    documents: dict[int, Document] = {}
    blank: list[str] = []
    for sample in track_progress(samples, "reading texts"):
        try:
            content = _read_content(source, sample)
            text = _decode(content, source.get_name(sample))
        except ValueError as error:
            omissions.unreadable.append(str(error))
            continue
        if text.strip():
            documents[sample] = Document(len(text.encode()), hash_content(content))
        else:
            blank.append(source.get_name(sample))
    omissions.add("texts without characters", blank)
    return documents


def make_stream(source: Source, documents: Mapping[int, Document], tokenizer: Tokenizer) -> TokenStream:
    """Return the ids of texts. Those of large ones are kept in a file, and read from there by the next run."""
    vocabulary = tokenizer.vocabulary
    start, end = [*vocabulary.begin, vocabulary.end][0], [*vocabulary.finish] if vocabulary.begin else []
    kind = np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.uint32)
    ids = _iterate_ids(source, [*documents], tokenizer)
    rows = (np.concatenate([np.array([start], kind), np.asarray(row, kind), np.array(end, kind)]) for row in ids)
    samples = [*documents]
    if sum(document.size for document in documents.values()) < MAPPED:
        return TokenStream(samples, np.concatenate([*rows, np.zeros(0, kind)]), kind, start)
    path = get_token_folder() / f"{make_key(documents, tokenizer)}.ids"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent) as folder:  # of this process: other ranks write the same file
            temporary = Path(folder) / path.name
            with temporary.open("wb") as file:
                for row in rows:
                    file.write(row.tobytes())
            temporary.replace(path)
    return TokenStream(samples, path, kind, start)


def _iterate_ids(source: Source, samples: Sequence[int], tokenizer: Tokenizer) -> Iterator[Sequence[int] | np.ndarray]:
    """Yield the ids of each text."""
    texts, size = list[str](), 0
    for sample in track_progress(samples, "encoding texts"):
        text = read_document(source, sample)
        if tokenizer.kind == BYTES:
            yield np.frombuffer(text.encode(), np.uint8)
            continue
        texts.append(text)
        size += len(text)
        if size >= PORTION or sample == samples[-1]:
            yield from tokenizer.encode(texts)
            texts, size = [], 0


def get_token_folder() -> Path:
    """Return $XDG_CACHE_HOME/vitkit/tokens, by default in ~/.cache; it may be deleted when no run reads it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitkit" / "tokens"


def make_key(documents: Mapping[int, Document], tokenizer: Tokenizer) -> str:
    """Return a hash of a tokenizer and of texts in their order."""
    texts = [document.digest for document in documents.values()]
    content = repr((sorted(format_tokenizer(tokenizer).items()), texts)).encode()
    return blake2b(content, digest_size=16).hexdigest()
