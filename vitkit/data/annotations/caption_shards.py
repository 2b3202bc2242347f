"""Captions in shards, as img2dataset and others write them."""

import sys
from collections.abc import Callable, Sequence
from functools import partial

from vitkit.data.annotations.captions import TEXT_COLUMNS, Captioned, attach_captions, texts
from vitkit.data.sources import shards
from vitkit.support.errors import few

USUAL = ("caption", "text")  # img2dataset's first


def index_captions(paths: Sequence[str], column: str) -> Captioned:
    """Find the samples in shards that exist.

    The caption is the value of `column` in a sample's .json, by default of `caption`, else of `text`; a list of them
    are several. Where there is none, every line of its .txt is one. Samples without a caption, which crawled
    collections have, are left out and told.

    Raises: ValueError, one line that lists everything wrong with the shards.
    """
    names = USUAL if column == TEXT_COLUMNS[1] else (column,)
    samples, problems = shards.read_samples(paths, partial(_captions, names=names))
    places = [sample.place for sample in samples]
    told = texts([sample.told for sample in samples], places)
    if told.empty and any(told.captions):
        bare = f"{len(told.empty):,} of {len(samples):,} samples have no caption and are left out"
        print(f"{bare}: {few(told.empty)}", file=sys.stderr)
        samples = [sample for sample, own in zip(samples, told.captions, strict=True) if own]
        told = told._replace(captions=[own for own in told.captions if own], empty=[])
    pictures = shards.pictured(paths, samples, [*problems, *told.problems], (), [-1] * len(samples))
    return attach_captions(pictures, told.captions)


def _captions(content: Callable[[str], bytes | None], names: Sequence[str]) -> object:
    if (found := content("json")) is not None:
        about = shards.parse_json(found)
        if isinstance(about, Exception):
            return about
        if (name := next((name for name in names if about.get(name)), None)) is not None:
            return about[name]
    lines = shards.text(content("txt") or b"")
    return lines.splitlines() if isinstance(lines, str) else lines
