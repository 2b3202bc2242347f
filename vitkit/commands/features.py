"""`vitkit features`: what a trained model makes of pictures, before its head reads it.

Letters: B batch, C channels, T tokens, D width, h w patches down and across.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.commands import collected
from vitkit.commands.batches import Reading, add_reading, batches, chosen_reading, present
from vitkit.commands.collected import Rows
from vitkit.data.sources import COLUMNS, Files, Source, open_source, pictures
from vitkit.models import ViT
from vitkit.preprocess import Preprocess
from vitkit.weights import open_model

FINAL = "features"  # the column of the normalised output; that of block 3 is features_3


class Readable(NamedTuple):
    """A model whose tokens can be read, and what belongs to it."""

    model: ViT
    preprocess: Preprocess
    classes: tuple[str, ...]


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
    """All at once, in memory; `stream` gives them batch by batch.

    Args:
        layers: the outputs of these blocks, from 0, or from the end: -1 is the last (default: its normalised output).
        dense: a vector for each patch, (N, D, h, w), in place of one for each picture.
    """
    source = open_source(source) if isinstance(source, str) else source
    parts = list(stream(open_readable(model), source, layers=layers, dense=dense, dtype=dtype, reading=reading))
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
    model = opened.model.to(present(reading.device))
    chosen = blocks(layers, len(model.encoder.blocks))
    weight = next(model.parameters())
    for batch in batches(source, range(len(source)), opened.preprocess, reading, "features"):
        columns: dict[str, np.ndarray] = {}
        with torch.inference_mode():  # not around the loop: it would be open while others go on
            for name, tokens in tokens_of(model, batch.images.to(weight), chosen).items():
                vectors = patches(model, tokens, opened.preprocess.size) if dense else model.pool(tokens)
                columns[name] = vectors.to("cpu", getattr(torch, dtype)).numpy()
        for name, column in columns.items():
            if not np.isfinite(column).all():
                what = source.name(int(batch.indices[0])) if len(batch.indices) else "nothing"
                raise ValueError(f"{name} must be finite in dtype={dtype}, got others for {what} or what follows")
        names = tuple(source.name(index) for index in batch.indices.tolist())
        labels = batch.labels.numpy() if source.classes else None
        yield Rows(columns, names, batch.indices.numpy(), labels, batch.skipped)


def tokens_of(model: ViT, images: Float[Tensor, "B C H W"], layers: Sequence[int]) -> dict[str, Tensor]:
    """(B, T, D) for each column: the outputs of these blocks, or, without any, the final normalised output."""
    with outputs([model.encoder.blocks[layer] for layer in layers]) as seen:
        final = model.features(images)
    return {f"{FINAL}_{layer}": tokens for layer, tokens in zip(layers, seen, strict=True)} or {FINAL: final}


@contextmanager
def outputs(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """What these modules, in the order in which they run, give while this is open."""
    seen: list[Tensor] = []

    def record(module: nn.Module, arguments: object, output: Tensor) -> None:
        seen.append(output)

    hooks = [module.register_forward_hook(record) for module in modules]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def patches(model: ViT, tokens: Float[Tensor, "B T D"], size: tuple[int, int]) -> Float[Tensor, "B D h w"]:
    """The tokens of the patches, without CLS and registers, where they stand in the image."""
    return tokens[:, len(model.embed.prefix) :].mT.unflatten(2, model.embed.grid(*size))


def blocks(layers: Sequence[int], depth: int) -> list[int]:
    """Places from 0, ascending, each once."""
    if wrong := [layer for layer in layers if not -depth <= layer < depth]:
        raise ValueError(f"layers must be from {-depth} to {depth - 1}, got {', '.join(map(str, wrong))}")
    return sorted({layer % depth for layer in layers})


def open_readable(folder: str | Path) -> Readable:
    """Raises: ValueError, one line, for whatever is wrong with a model folder, and for one of another kind."""
    model, preprocess, classes, _ = open_model(folder)
    if not isinstance(model, ViT):
        raise ValueError(f"model must be a ViT, got {type(model).__name__} in {folder}")
    if model.head.out_features != len(classes):
        raise ValueError(
            f"model must give a number per class, got {model.head.out_features} for {len(classes)} classes"
        )
    return Readable(model, preprocess, classes)


def unlabelled(name: str) -> Source:
    """A picture file, or all below a folder."""
    found = pictures(Path(name)) if Path(name).is_dir() else [name]
    if not found or not Path(found[0]).exists():
        raise ValueError(f"source must be a picture, or a folder that holds some, got source={name}")
    return Files(found, (), [-1] * len(found))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit features",
        description="Write what a model makes of pictures, before its head reads it: a vector for each picture, as the "
        "model pools them, or for each patch. The file also holds names, places in the source, labels and class names.",
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
    opened = open_readable(options.model)
    source = unlabelled(options.source) if options.unlabelled else open_source(options.source, tuple(options.columns))
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
