"""Features of images, before a model's head reads them.

B batch, N images, T tokens, K classes, D width, h w patches down and across.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.convert.open import open_image_tower
from vitkit.data.batches import Reading, batches
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import Source
from vitkit.inference.feature_files import FeatureRows
from vitkit.models import parts as model_parts
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.parts import ImageTower, require_image_model
from vitkit.models.protocol import ImageModel
from vitkit.support.devices import get_device


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
    parts = list(stream(open_image_tower(model), source, layers=layers, dense=dense, dtype=dtype, reading=reading))
    whole = [part for part in parts if part.names]
    if not whole:
        raise ValueError(f"source must hold pictures that can be read, got {len(source)}, of which none can")
    return Features(
        {name: np.concatenate([part.features[name] for part in whole]) for name in whole[0].features},
        tuple(name for part in whole for name in part.names),
        np.concatenate([part.indices for part in whole]),
        np.concatenate([part.labels for part in whole if part.labels is not None]) if source.class_names else None,
        source.class_names,
        tuple(line for part in parts for line in part.skipped),
    )


def stream(
    bundle: Bundle,
    source: Source,
    *,
    layers: Sequence[int] = (),
    dense: bool = False,
    dtype: str = "float32",
    reading: Reading | None = None,
) -> Iterator[FeatureRows]:
    """What `features` gives, a batch at a time; names are the source's."""
    reading = reading or Reading()
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype must be float32 or float16, got dtype={dtype}")
    model, preprocess = require_image_model(bundle.model), get_preprocess(bundle)
    model.to(get_device(reading.device))
    chosen = blocks(layers, len(model_parts.get_layers(model).blocks))
    weight = next(model.parameters())
    for batch in batches(source, range(len(source)), preprocess, reading, "features"):
        columns: dict[str, np.ndarray] = {}
        with torch.inference_mode():  # not around the loop: it would be open while others go on
            for name, tokens in tokens_of(model, batch.images.to(weight), chosen).items():
                vectors = spread(model, tokens, preprocess.size) if dense else model.pool(tokens)
                if name == FINAL and not dense and not bundle.class_names:
                    vectors = model.head(vectors)
                columns[name] = vectors.to("cpu", getattr(torch, dtype)).numpy()
        for name, column in columns.items():
            if not np.isfinite(column).all():
                what = source.get_name(int(batch.indices[0])) if len(batch.indices) else "nothing"
                raise ValueError(f"{name} must be finite in dtype={dtype}, got others for {what} or what follows")
        names = tuple(source.get_name(index) for index in batch.indices.tolist())
        labels = batch.labels.numpy() if source.class_names else None
        yield FeatureRows(columns, names, batch.indices.numpy(), labels, batch.skipped)


FINAL = "features"  # the column of the normalised output; that of block 3 is features_3


def tokens_of(
    model: ImageTower | HeadedTower, images: Float[Tensor, "B C H W"], layers: Sequence[int]
) -> dict[str, Tensor]:
    """(B, T, D) for each column: the outputs of these blocks, or, without any, the final normalised output."""
    every = model_parts.get_layers(model).blocks
    with outputs([every[layer] for layer in layers]) as seen:
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


def spread(model: ImageModel, tokens: Float[Tensor, "B T D"], size: tuple[int, int]) -> Float[Tensor, "B D h w"]:
    """The tokens of the patches, without CLS and registers, where they stand in the image."""
    return tokens[:, model.prefix :].mT.unflatten(2, model.grid(size))


def blocks(layers: Sequence[int], depth: int) -> list[int]:
    """Places from 0, ascending, each once."""
    if wrong := [layer for layer in layers if not -depth <= layer < depth]:
        raise ValueError(f"layers must be from {-depth} to {depth - 1}, got {', '.join(map(str, wrong))}")
    return sorted({layer % depth for layer in layers})
