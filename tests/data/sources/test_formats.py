"""The same pictures in every format are the same training: batches, validation split and classes."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from vitkit.data.images import Images

os.environ.setdefault("HF_HUB_OFFLINE", "1")
NAMES = ("ape", "bee", "cat")


class Sample(NamedTuple):
    path: str
    content: bytes
    label: str


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where `datasets` unpacks."""
    import datasets

    datasets.disable_progress_bars()
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def few(picture: Callable[..., bytes]) -> list[Sample]:
    """60 pictures of several sizes, in the order of class folders."""
    samples = []
    for seed in range(60):
        kind, suffix = (("PNG", "png"), ("JPEG", "jpg"))[seed % 2]
        content = picture(seed, (9 + seed % 4, 7 + seed % 3), kind)
        samples.append(Sample(f"{NAMES[seed // 20]}/{seed:03}.{suffix}", content, NAMES[seed // 20]))
    return samples


@pytest.fixture(scope="module")
def many() -> list[Sample]:
    """So many of mnist5k, every class equally often."""
    source = Images("mnist5k", size=(28, 28), mean=(0.5,), std=(0.5,)).source
    count = int(os.environ.get("VITKIT_PICTURES", "200")) // 10  # 2,000 take two minutes
    samples = []
    for digit in range(10):
        for index in [index for index, label in enumerate(source.labels) if label == digit][:count]:
            samples.append(Sample(f"{digit}/{index:04}.png", encode(source.picture(index)), str(digit)))
    return samples


def encode(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def folders(root: Path, samples: list[Sample]) -> Path:
    for path, content, _ in samples:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def rows(samples: list[Sample]) -> list[dict[str, str]]:
    return [{"file_name": sample.path, "label": sample.label} for sample in samples]


def write_csv(path: Path, samples: list[Sample], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["label", "file_name"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows(samples))


def write_jsonl(path: Path, samples: list[Sample]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(samples)))


def dataset(samples: list[Sample]):
    from datasets import ClassLabel, Dataset, Features, Image

    names = sorted({sample.label for sample in samples})
    pictures = [{"bytes": sample.content, "path": None} for sample in samples]
    labels = [names.index(sample.label) for sample in samples]
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"image": pictures, "label": labels}, features=features)


def write(form: str, root: Path, samples: list[Sample], shard: Callable[..., Path]) -> str:
    """Store the samples in one format. Returns: the source's name."""
    if form in ("metadata.csv", "metadata.jsonl"):
        {"metadata.csv": write_csv, "metadata.jsonl": write_jsonl}[form](folders(root, samples) / form, samples)
        return str(root)
    if form == "CSV":
        write_csv(folders(root, samples) / "table.csv", samples, ";")
        return str(root / "table.csv")
    if form == "JSONL":
        absolute = [sample._replace(path=str(root / "pictures" / sample.path)) for sample in samples]
        folders(root / "pictures", samples)
        write_jsonl(root / "table.jsonl", absolute)
        return str(root / "table.jsonl")
    if form == "Parquet of names":
        import pyarrow
        from pyarrow import parquet

        folders(root, samples)
        parquet.write_table(pyarrow.Table.from_pylist(rows(samples)), root / "table.parquet")
        return str(root / "table.parquet")
    if form == "Parquet of pictures":
        dataset(samples).to_parquet(root / "table.parquet", batch_size=16)
        return str(root / "table.parquet")
    if form == "Parquet of bytes":
        import pyarrow
        from pyarrow import parquet

        columns = {"png": [sample.content for sample in samples], "label": [sample.label for sample in samples]}
        parquet.write_table(pyarrow.table(columns), root / "table.parquet")
        return str(root / "table.parquet")
    if form == "shards":
        step = -(-len(samples) // 5)
        for number in range(5):
            part = samples[number * step : (number + 1) * step]
            members = [member for sample in part for member in in_shard(sample)]
            shard(root / f"{number:02}.tar", members)
        return str(root / "{00..04}.tar")
    if form == "hf: imagefolder":
        folders(root / "pictures" / "train", samples)
        return f"hf:{root / 'pictures'}"
    assert form == "hf: saved"
    dataset(samples).save_to_disk(root / "saved")
    return f"hf:{root / 'saved'}"


def in_shard(sample: Sample) -> Iterator[tuple[str, bytes | str]]:
    yield sample.path, sample.content
    yield str(Path(sample.path).with_suffix(".cls")), sample.label


FORMS = (
    *("metadata.csv", "metadata.jsonl", "CSV", "JSONL", "Parquet of names", "Parquet of pictures", "Parquet of bytes"),
    *("shards", "hf: imagefolder", "hf: saved"),
)


def seen(source: str, size: tuple[int, int], batch: int) -> tuple[Images, list[torch.Tensor]]:
    """Two epochs of training and one of validation, and where they come from."""
    augment = (v2.RandomCrop(size, pad_if_needed=True), v2.RandomHorizontalFlip())
    data = Images(source, size=size, mean=(0.5,) * 3, std=(0.5,) * 3, batch=batch, augment=augment, seed=3)
    loader, batches = data.train_dataloader(), []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        batches += list(loader)
    batches += list(data.val_dataloader())
    return data, [tensor for batch in batches for tensor in batch[:3]]


def check(form: str, samples: list[Sample], root: Path, shard: Callable[..., Path], batch: int) -> None:
    expected, tensors = seen(str(folders(root / "class folders", samples)), (6, 8), batch)
    (root / "given").mkdir()
    given, others = seen(write(form, root / "given", samples, shard), (6, 8), batch)
    assert given.names == expected.names
    assert given.source.labels == expected.source.labels
    assert given.validation == expected.validation
    assert len(others) == len(tensors)
    assert all(torch.equal(one, other) for one, other in zip(tensors, others, strict=True))
    assert [given.source.content(index) for index in range(len(samples))] == [sample.content for sample in samples]
    assert given.source.length(3) == len(samples[3].content)
    assert given.source.end(3) == samples[3].content[-4096:]


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_batches(
    form: str, few: list[Sample], tmp_path: Path, shard: Callable[..., Path]
) -> None:
    check(form, few, tmp_path, shard, 7)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_digits_give_the_same_batches_in_every_format(
    form: str, many: list[Sample], tmp_path: Path, shard: Callable[..., Path]
) -> None:
    check(form, many, tmp_path, shard, 64)
