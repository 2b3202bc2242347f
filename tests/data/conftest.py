import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Shard = Callable[[Path, Iterable[tuple[str, bytes | str]]], Path]
Picture = Callable[..., bytes]


@pytest.fixture(scope="session")
def shard() -> Shard:
    """Writes a tar file from paths and contents."""

    def shard(path: Path, members: Iterable[tuple[str, bytes | str]]) -> Path:
        with tarfile.open(path, "w") as tar:
            for name, content in members:
                content = content.encode() if isinstance(content, str) else content
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return path

    return shard


@pytest.fixture(scope="session")
def picture() -> Picture:
    """The bytes of a picture file; every seed gives another one."""

    def picture(seed: int = 0, size: tuple[int, int] = (9, 7), kind: str = "PNG") -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        return file.getvalue()

    return picture


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the cache of `datasets` to a temporary folder, without a network."""
    import datasets

    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
