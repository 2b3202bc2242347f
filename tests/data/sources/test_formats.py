"""The same images in every format are the same training: batches, validation split, classes or captions."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from vitkit.data.images import Images
from vitkit.data.pairs import Pairs
from vitkit.data.pictures import Augmentation
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
NAMES = ("ape", "bee", "cat")


class Sample(NamedTuple):
    path: str
    content: bytes
    label: str
    captions: tuple[str, ...] = ()

    def cell(self, column: str) -> str | list[str]:
        return self.label if column == "label" else [*self.captions]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Point the cache of `datasets` to a temporary folder."""
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
        name = NAMES[seed // 20]
        captions = (f"{name} | {seed}", f"number {seed // 2}", f'a "{name}", or {seed // 3}')[: 2 + seed % 2]
        samples.append(Sample(f"{NAMES[seed // 20]}/{seed:03}.{suffix}", content, NAMES[seed // 20], captions))
    return samples


@pytest.fixture(scope="module")
def many() -> list[Sample]:
    """So many of mnist5k, every class equally often."""
    source = Images("mnist5k", preprocess=Preprocess((28, 28), (0.5,), (0.5,))).source
    count = int(os.environ.get("VITKIT_PICTURES", "200")) // 10  # 2,000 take two minutes
    samples = []
    for digit in range(10):
        for index in [index for index, label in enumerate(source.labels) if label == digit][:count]:
            samples.append(Sample(f"{digit}/{index:04}.png", encode(source.read_image(index)), str(digit)))
    return samples


def encode(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def folders(root: Path, samples: list[Sample]) -> Path:
    for path, content, *_ in samples:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def rows(samples: list[Sample], column: str) -> list[dict[str, Any]]:
    return [{"file_name": sample.path, column: sample.cell(column)} for sample in samples]


def write_csv(path: Path, samples: list[Sample], column: str, delimiter: str = ",") -> None:
    """Several captions of an image are several rows of it."""
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, [column, "file_name"], delimiter=delimiter)
        writer.writeheader()
        for row in rows(samples, column):
            cells = row[column] if isinstance(row[column], list) else [row[column]]
            writer.writerows(row | {column: cell} for cell in cells)


def write_jsonl(path: Path, samples: list[Sample], column: str) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(samples, column)))


def dataset(samples: list[Sample], column: str):
    from datasets import ClassLabel, Dataset, Features, Image, List, Value

    names = sorted({sample.label for sample in samples})
    pictures = [{"bytes": sample.content, "path": None} for sample in samples]
    cells = [names.index(sample.label) if column == "label" else [*sample.captions] for sample in samples]
    kind = ClassLabel(names=names) if column == "label" else List(Value("string"))
    return Dataset.from_dict({"image": pictures, column: cells}, features=Features({"image": Image(), column: kind}))


def write(form: str, root: Path, samples: list[Sample], shard: Callable[..., Path], column: str) -> str:
    """Store the samples in one format. Returns: the source's name."""
    if form in ("metadata.csv", "metadata.jsonl"):
        {"metadata.csv": write_csv, "metadata.jsonl": write_jsonl}[form](folders(root, samples) / form, samples, column)
        return str(root)
    if form == "CSV":
        write_csv(folders(root, samples) / "table.csv", samples, column, ";")
        return str(root / "table.csv")
    if form == "JSONL":
        absolute = [sample._replace(path=str(root / "pictures" / sample.path)) for sample in samples]
        folders(root / "pictures", samples)
        write_jsonl(root / "table.jsonl", absolute, column)
        return str(root / "table.jsonl")
    if form == "Parquet of names":
        import pyarrow
        from pyarrow import parquet

        folders(root, samples)
        parquet.write_table(pyarrow.Table.from_pylist(rows(samples, column)), root / "table.parquet")
        return str(root / "table.parquet")
    if form == "Parquet of pictures":
        dataset(samples, column).to_parquet(root / "table.parquet", batch_size=16)
        return str(root / "table.parquet")
    if form == "Parquet of bytes":
        import pyarrow
        from pyarrow import parquet

        cells = [sample.cell(column) for sample in samples]
        columns = {"png": [sample.content for sample in samples], column: cells}
        parquet.write_table(pyarrow.table(columns), root / "table.parquet")
        return str(root / "table.parquet")
    if form == "shards":
        step = -(-len(samples) // 5)
        for number in range(5):
            part = samples[number * step : (number + 1) * step]
            members = [member for sample in part for member in in_shard(sample, column)]
            shard(root / f"{number:02}.tar", members)
        return str(root / "{00..04}.tar")
    if form == "hf: imagefolder":
        train = folders(root / "pictures" / "train", samples)
        if column == "text":
            write_jsonl(train / "metadata.jsonl", samples, column)
        return f"hf:{root / 'pictures'}"
    assert form == "hf: saved"
    dataset(samples, column).save_to_disk(root / "saved")
    return f"hf:{root / 'saved'}"


def in_shard(sample: Sample, column: str) -> Iterator[tuple[str, bytes | str]]:
    yield sample.path, sample.content
    if column == "label":
        yield str(Path(sample.path).with_suffix(".cls")), sample.label
    else:
        yield str(Path(sample.path).with_suffix(".txt")), "\n".join(sample.captions)


FORMS = (
    *("metadata.csv", "metadata.jsonl", "CSV", "JSONL", "Parquet of names", "Parquet of pictures", "Parquet of bytes"),
    *("shards", "hf: imagefolder", "hf: saved"),
)


def read_epochs(data: Images | Pairs) -> list[torch.Tensor]:
    """Two epochs of training and one of validation."""
    loader, batches = data.train_dataloader(), []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        batches += list(loader)
    batches += list(data.val_dataloader())
    return [tensor for batch in batches for tensor in batch if isinstance(tensor, torch.Tensor)]


def load_labels(source: str, size: tuple[int, int], batch: int) -> Images:
    augment = (v2.RandomCrop(size, pad_if_needed=True), v2.RandomHorizontalFlip())
    return Images(
        source, preprocess=Preprocess(size, (0.5,) * 3, (0.5,) * 3), augment=Augmentation(augment), batch=batch, seed=3
    )


def load_captions(source: str, size: tuple[int, int], batch: int) -> Pairs:
    return Pairs(
        source,
        preprocess=Preprocess(size, (0.5,) * 3, (0.5,) * 3),
        tokenizer=Tokenizer(context=16, vocabulary=300),
        batch=batch,
        seed=3,
    )


def check_equal(given: Images | Pairs, expected: Images | Pairs, samples: list[Sample]) -> None:
    assert given.class_names == expected.class_names
    assert given.source.labels == expected.source.labels
    assert given.validation == expected.validation
    others, tensors = read_epochs(given), read_epochs(expected)
    assert len(others) == len(tensors)
    assert all(torch.equal(one, other) for one, other in zip(tensors, others, strict=True))
    assert [given.source.read_content(index) for index in range(len(samples))] == [sample.content for sample in samples]
    assert given.source.count_bytes(3) == len(samples[3].content)
    assert given.source.read_end(3) == samples[3].content[-4096:]


def check(form: str, samples: list[Sample], root: Path, shard: Callable[..., Path], batch: int) -> None:
    expected = load_labels(str(folders(root / "class folders", samples)), (6, 8), batch)
    (root / "given").mkdir()
    given = load_labels(write(form, root / "given", samples, shard, "label"), (6, 8), batch)
    check_equal(given, expected, samples)


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_batches(
    form: str, few: list[Sample], tmp_path: Path, shard: Callable[..., Path]
) -> None:
    check(form, few, tmp_path, shard, 7)


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_captions(
    form: str, few: list[Sample], tmp_path: Path, shard: Callable[..., Path]
) -> None:
    beside = folders(tmp_path / "texts beside", few)
    for sample in few:
        (beside / sample.path).with_suffix(".txt").write_text("\n".join(sample.captions))
    expected = load_captions(str(beside), (6, 8), 7)
    (tmp_path / "given").mkdir()
    given = load_captions(write(form, tmp_path / "given", few, shard, "text"), (6, 8), 7)
    assert given.captioned.captions == expected.captioned.captions == [sample.captions for sample in few]
    assert given.captioned.positives == expected.captioned.positives
    assert given.captioned.groups == expected.captioned.groups
    assert len({*given.captioned.groups}) < len(few)
    check_equal(given, expected, few)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_digits_give_the_same_batches_in_every_format(
    form: str, many: list[Sample], tmp_path: Path, shard: Callable[..., Path]
) -> None:
    check(form, many, tmp_path, shard, 64)
