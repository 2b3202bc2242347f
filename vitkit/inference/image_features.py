"""Features of images: the outputs of a model before its head.

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
from vitkit.data.batches import Reading, read_batches
from vitkit.data.sources.open import open_pictures
from vitkit.data.sources.source import Source
from vitkit.inference.feature_files import FeatureRows
from vitkit.models import parts as model_parts
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.parts import ImageTower, require_image_model
from vitkit.models.protocol import ImageModel
from vitkit.support.devices import get_device


class Features(NamedTuple):
    """The features of the readable images, (N, D) or (N, D, h, w) for each column, and their names in the source.

    `labels` are (N,) indices of `classes`, (N, K) for sets of classes, or None.
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
    """Compute the features of all images in memory. For a CLIP they are its embeddings, with norm 1.

    Args:
        layers: blocks to take the outputs of, from 0, or -1 for the last (default: the normalised output of the last).
        dense: a vector for each patch, (N, D, h, w), instead of one for each image.
    """
    source = open_pictures(source, exclude=reading.exclude if reading else ()) if isinstance(source, str) else source
    bundle = open_image_tower(model)
    parts = list(stream_features(bundle, source, layers=layers, dense=dense, dtype=dtype, reading=reading))
    readable = [part for part in parts if part.names]
    if not readable:
        raise ValueError(f"source must hold pictures that can be read, got {len(source)}, of which none can")
    return Features(
        {name: np.concatenate([part.features[name] for part in readable]) for name in readable[0].features},
        tuple(name for part in readable for name in part.names),
        np.concatenate([part.indices for part in readable]),
        np.concatenate([part.labels for part in readable if part.labels is not None]) if source.class_names else None,
        source.class_names,
        tuple(line for part in parts for line in part.skipped),
    )


def stream_features(
    bundle: Bundle,
    source: Source,
    *,
    layers: Sequence[int] = (),
    dense: bool = False,
    dtype: str = "float32",
    reading: Reading | None = None,
) -> Iterator[FeatureRows]:
    """Yield the features of `features` batch by batch."""
    reading = reading or Reading()
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype must be float32 or float16, got dtype={dtype}")
    model, preprocess = require_image_model(bundle.model), get_preprocess(bundle)
    model.to(get_device(reading.device))
    indices = resolve_layers(layers, len(model_parts.get_layers(model).blocks))
    weight = next(model.parameters())
    for batch in read_batches(source, range(len(source)), preprocess, reading, "features"):
        columns: dict[str, np.ndarray] = {}
        with torch.inference_mode():  # not around the loop: it would stay open between batches
            for name, tokens in compute_tokens(model, batch.images.to(weight), indices).items():
                vectors = arrange_patches(model, tokens, preprocess.size) if dense else model.pool(tokens)
                if name == FINAL and not dense and not bundle.class_names:
                    vectors = model.head(vectors)
                columns[name] = vectors.to("cpu", getattr(torch, dtype)).numpy()
        for name, column in columns.items():
            if not np.isfinite(column).all():
                first = source.get_name(int(batch.indices[0])) if len(batch.indices) else "nothing"
                raise ValueError(f"{name} must be finite in dtype={dtype}, got others in the batch from {first} on")
        names = tuple(source.get_name(index) for index in batch.indices.tolist())
        labels = batch.labels.numpy() if source.class_names else None
        yield FeatureRows(columns, names, batch.indices.numpy(), labels, batch.skipped)


FINAL = "features"  # column of the normalised output; that of block 3 is features_3


def compute_tokens(
    model: ImageTower | HeadedTower, images: Float[Tensor, "B C H W"], layers: Sequence[int]
) -> dict[str, Tensor]:
    """Return (B, T, D) tokens for each column: the outputs of blocks, or by default the final normalised output."""
    blocks = model_parts.get_layers(model).blocks
    with record_outputs([blocks[layer] for layer in layers]) as outputs:
        final = model.features(images)
    return {f"{FINAL}_{layer}": tokens for layer, tokens in zip(layers, outputs, strict=True)} or {FINAL: final}


@contextmanager
def record_outputs(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Append the outputs of modules to the list, in the order in which they run, while the context is open."""
    outputs: list[Tensor] = []

    def record(module: nn.Module, arguments: object, output: Tensor) -> None:
        outputs.append(output)

    hooks = [module.register_forward_hook(record) for module in modules]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def arrange_patches(
    model: ImageModel, tokens: Float[Tensor, "B T D"], size: tuple[int, int]
) -> Float[Tensor, "B D h w"]:
    """Return the tokens of the patches, without CLS and registers, in the grid of the image."""
    return tokens[:, model.prefix :].mT.unflatten(2, model.grid(size))


def resolve_layers(layers: Sequence[int], depth: int) -> list[int]:
    """Return the indices of blocks from 0, ascending, each once."""
    if invalid := [layer for layer in layers if not -depth <= layer < depth]:
        raise ValueError(f"layers must be from {-depth} to {depth - 1}, got {', '.join(map(str, invalid))}")
    return sorted({layer % depth for layer in layers})
