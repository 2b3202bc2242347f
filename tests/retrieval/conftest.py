import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.bundle.bundle import Bundle
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP, TextTower, ViT
from vitkit.nn import Encoder
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.embedder import Embedder


def embedder(seed: int = 0, heads: int = 2) -> Embedder:
    """A tiny CLIP of random weights."""
    image = ViT(Encoder(32, 2, heads), (16, 16), (4, 4), 24)
    model = CLIP(image, TextTower(Encoder(32, 2, heads, causal=True), outputs=24))
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return Embedder(
        Bundle(
            model.eval(),
            {},
            Preprocess((16, 16), (0.5,) * 3, (0.25,) * 3),
            tokenizer=Tokenizer(),
            source=f"clip {seed}",
        )
    )


@pytest.fixture(scope="session")
def clips() -> Callable[..., Embedder]:
    return embedder


@pytest.fixture(scope="session")
def clip() -> Embedder:
    return embedder()


def draw_stripes(path: Path, seed: int) -> None:
    """Write a picture of three stripes in colours drawn with the seed."""
    generator = np.random.default_rng(seed)
    stripes = generator.integers(0, 256, (3, 1, 3), dtype=np.uint8).repeat(4, axis=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(stripes.repeat(8 + seed % 5, axis=1)).save(path)
    make_old(path, seed)


def make_old(path: Path, seconds: int = 0) -> None:
    """Set a time of change so long ago that the next scan trusts it."""
    os.utime(path, ns=(10**18 + seconds * 10**9,) * 2)


@pytest.fixture
def draw() -> Callable[[Path, int], None]:
    return draw_stripes


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve pictures in two folders, of equal names; four have captions, and one file is no picture."""
    root = tmp_path / "pictures"
    for seed in range(12):
        draw_stripes(path := root / "ab"[seed % 2] / f"{seed // 2}.png", seed)
        if seed < 4:
            path.with_suffix(".txt").write_text(f"picture {seed}\n\n  seen   twice\n", "utf-8")
            make_old(path.with_suffix(".txt"))
    (root / "broken.png").write_bytes(b"not a picture")
    make_old(root / "broken.png")
    return root


@pytest.fixture
def collection(tmp_path: Path, clip: Embedder) -> Collection:
    """Return a collection that does not exist yet."""
    return Collection(tmp_path / "db", clip, device="cpu")


@pytest.fixture
def rows() -> Callable[[Collection], list[dict]]:
    """Return a function for the sorted rows of a collection, without the vectors."""

    def rows(collection: Collection) -> list[dict]:
        columns = [name for name in collection.store.items.schema.names if name != "vector"]
        items = collection.store.items.search().select(columns).limit(None).to_arrow().to_pylist()
        return sorted(items, key=lambda row: (row["root"], row["path"], row["line"]))

    return rows
