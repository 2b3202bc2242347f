"""`vitkit features`: what a trained model makes of pictures, before its head reads it.

Letters: N pictures, K classes, D width, h w patches down and across.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vitkit.bundle.image_bundle import Readable
from vitkit.commands import collected
from vitkit.commands.batches import add_reading, chosen_reading
from vitkit.commands.collected import Rows
from vitkit.commands.readable import FINAL, blocks, spread, tokens_of
from vitkit.convert.open import open_tower
from vitkit.data.batches import Reading, batches
from vitkit.data.sources.open import open_source, open_unlabelled
from vitkit.data.sources.source import COLUMNS, Source
from vitkit.support.devices import present


class Features(NamedTuple):
    """One row for each picture that could be read, (N, D) or (N, D, h, w) for each column; names are the source's.

    `labels` are (N,) places in `classes`, (N, K) where a picture has a set of them, None where there are none.
    """

    features: dict[str, np.ndarray]
    names: tuple[str, ...]
    indices: np.ndarray
    labels: np.ndarray | None
    classes: tuple[str, ...]
    skipped: tuple[str, ...]


def features(
    model: str | Path,
    source: str | Source,
    *,
    layers: Sequence[int] = (),
    dense: bool = False,
    dtype: str = "float32",
    reading: Reading | None = None,
) -> Features:
    """All at once, in memory; `stream` gives them batch by batch. Of a CLIP they are its embeddings, of length 1.

    Args:
        layers: the outputs of these blocks, from 0, or from the end: -1 is the last (default: its normalised output).
        dense: a vector for each patch, (N, D, h, w), in place of one for each picture.
    """
    source = open_source(source) if isinstance(source, str) else source
    parts = list(stream(open_tower(model), source, layers=layers, dense=dense, dtype=dtype, reading=reading))
    whole = [part for part in parts if part.names]
    if not whole:
        raise ValueError(f"source must hold pictures that can be read, got {len(source)}, of which none can")
    return Features(
        {name: np.concatenate([part.features[name] for part in whole]) for name in whole[0].features},
        tuple(name for part in whole for name in part.names),
        np.concatenate([part.indices for part in whole]),
        np.concatenate([part.labels for part in whole if part.labels is not None]) if source.classes else None,
        source.classes,
        tuple(line for part in parts for line in part.skipped),
    )


def stream(
    opened: Readable,
    source: Source,
    *,
    layers: Sequence[int] = (),
    dense: bool = False,
    dtype: str = "float32",
    reading: Reading | None = None,
) -> Iterator[Rows]:
    """What `features` gives, a batch at a time; names are the source's."""
    reading = reading or Reading()
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype must be float32 or float16, got dtype={dtype}")
    opened.to(present(reading.device))
    model = opened.model
    chosen = blocks(layers, len(model.encoder.blocks))
    weight = next(model.parameters())
    for batch in batches(source, range(len(source)), opened.preprocess, reading, "features"):
        columns: dict[str, np.ndarray] = {}
        with torch.inference_mode():  # not around the loop: it would be open while others go on
            for name, tokens in tokens_of(model, batch.images.to(weight), chosen).items():
                vectors = spread(model, tokens, opened.preprocess.size) if dense else opened.pool(tokens)
                vectors = opened.embed(vectors) if name == FINAL and not dense else vectors
                columns[name] = vectors.to("cpu", getattr(torch, dtype)).numpy()
        for name, column in columns.items():
            if not np.isfinite(column).all():
                what = source.name(int(batch.indices[0])) if len(batch.indices) else "nothing"
                raise ValueError(f"{name} must be finite in dtype={dtype}, got others for {what} or what follows")
        names = tuple(source.name(index) for index in batch.indices.tolist())
        labels = batch.labels.numpy() if source.classes else None
        yield Rows(columns, names, batch.indices.numpy(), labels, batch.skipped)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit features",
        description="Write what a model makes of pictures, before its head reads it: a vector for each picture, as the "
        "model pools them (of a CLIP its embedding, of length 1), or for each patch. The file also holds names, places "
        "in the source, labels and class names.",
    )
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    parser.add_argument("source", help="labelled pictures, named as for --data.train")
    parser.add_argument("--unlabelled", action="store_true", help="source is a picture, or any folder of pictures")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="new: .parquet, .npz or .safetensors")
    parser.add_argument("--dense", action="store_true", help="a vector for each patch: (N, D, h, w) in place of (N, D)")
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=(),
        metavar="BLOCK",
        help="outputs of blocks, from 0, or from the end: -1 is the last (default: its normalised output)",
    )
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="(default: %(default)s)")
    parser.add_argument("--columns", nargs=2, default=COLUMNS, metavar=("FILE", "LABEL"), help="of a table")
    add_reading(parser)
    options = parser.parse_args(arguments)

    collected.checked(options.out)
    opened = open_tower(options.model)
    opening = open_unlabelled if options.unlabelled else open_source
    source = opening(options.source, tuple(options.columns))
    found = stream(
        opened,
        source,
        layers=options.layers,
        dense=options.dense,
        dtype=options.dtype,
        reading=chosen_reading(options),
    )
    shapes, count, skipped = collected.collect(options.out, found, source.classes)
    for name, shape in shapes.items():
        print(f"{name}: {count:,} x {' x '.join(map(str, shape))}, {options.dtype}")
    for line in skipped:
        print(f"error: {line}", file=sys.stderr)
    if skipped:
        print(f"error: {len(skipped)} of {len(source)} pictures could not be read, and have no row", file=sys.stderr)
    return 1 if skipped else 0
