"""Samples are known again after their source was changed. T trained samples, H samples that were held out."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.annotations.labels import LABELS
from vitkit.data.images import Images
from vitkit.data.preprocess import Preprocess
from vitkit.data.sample_record import SampleLog, SampleRecord, divide_source, divide_sources
from vitkit.data.sample_selection import select_all, select_held_out
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import Files, Source

Shard = Callable[..., Path]
Contents = Mapping[str, bytes]


def make_image(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (2, 2), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PPM")  # all of one size, so that a size tells nothing
    return file.getvalue() + seed.to_bytes(4)


def write_folder(root: Path, images: Contents, shard: Shard) -> str:
    for name, content in images.items():
        path = root / "ab"[content[-1] % 2] / f"{name}.ppm"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(root)


def write_table(root: Path, images: Contents, shard: Shard) -> str:
    write_folder(root / "images", images, shard)
    with (root / "table.csv").open("w", newline="") as file:
        rows = [(f"images/{'ab'[c[-1] % 2]}/{name}.ppm", "a|b" if c[-1] % 3 else "b") for name, c in images.items()]
        csv.writer(file).writerows([("file_name", "label"), *rows])
    return str(root / "table.csv")


def write_captions(root: Path, images: Contents, shard: Shard) -> str:
    root.mkdir()
    for name, content in images.items():
        (root / f"{name}.ppm").write_bytes(content)
        (root / f"{name}.txt").write_text(f"picture {int.from_bytes(content[-2:]) // 2}")  # of two images each
    return str(root)


def write_shards(root: Path, images: Contents, shard: Shard) -> str:
    root.mkdir()
    members = [(f"{name}.{kind}", c if kind == "ppm" else "ab"[c[-1] % 2]) for name, c in images.items()
               for kind in ("ppm", "cls")]  # fmt: skip
    shard(root / "0.tar", members[:1000])
    shard(root / "1.tar", members[1000:])
    return str(root / "{0..1}.tar")


def write_parquet(root: Path, images: Contents, shard: Shard) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    root.mkdir()
    table = {"image": [*images.values()], "label": ["ab"[content[-1] % 2] for content in images.values()]}
    parquet.write_table(pa.table(table), root / "table.parquet")
    return str(root / "table.parquet")


FORMATS = [write_folder, write_table, write_captions, write_shards, write_parquet]


class Split:
    """A source with the split of its rule."""

    def __init__(self, name: str, captions: bool, columns: tuple[str, str]) -> None:
        self.groups = None
        if captions:
            captioned = open_source(name, CAPTIONS)
            self.source, self.groups = captioned.pictures, captioned.groups
            self.sides = CAPTIONS.split(captioned, 5, 0)
        else:
            self.source = open_source(name, columns=columns)
            self.sides = LABELS.split(self.source, 5, 0)

    def divide(self, record: SampleRecord) -> SampleLog:
        sides = divide_source(record, self.source, *self.sides, self.groups)
        return SampleLog((self.source, self.source), sides, 5, 0)


def list_samples(log: SampleLog, held_out: bool) -> list[int]:
    return np.flatnonzero(log.places[held_out] >= 0).tolist()


def read_all(source: Source, log: SampleLog, held_out: bool, samples: list[int] | None = None) -> set[int]:
    """Add the digests of samples to a log, and return them."""
    read = list_samples(log, held_out) if samples is None else samples
    digests = {sample: source.compute_digest(sample) for sample in read}
    log.add(held_out, digests)
    return {*digests.values()}


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("share", [1.0, 0.5], ids=["whole epoch", "killed in the first epoch"])
@pytest.mark.parametrize("write", FORMATS)
def test_trained_samples_are_never_held_out_after_changes(
    write: Callable[..., str], share: float, tmp_path: Path, shard: Shard
) -> None:
    images = {f"{seed:04d}": make_image(seed) for seed in range(1000)}
    kind = write is write_captions, (("image", "label") if write is write_parquet else ("file_name", "label"))
    split = Split(write(tmp_path / "before", images, shard), *kind)
    log = split.divide(SampleRecord())
    assert (list_samples(log, False), list_samples(log, True)) == split.sides
    rng = np.random.default_rng(0)
    trained = read_all(split.source, log, False, [s for s in split.sides[0] if rng.random() < share])
    held_out = read_all(split.source, log, True) if share == 1 else set[int]()
    record = log.make_record()

    changed = {"0000a": make_image(1000), **images}
    changed["zzzz"] = changed.pop("0007")
    del changed["0011"]
    again = Split(write(tmp_path / "after", dict(sorted(changed.items())), shard), *kind)
    log = again.divide(record)
    training, validation = (read_all(again.source, log, side) for side in (False, True))
    assert not trained & validation
    assert not held_out & training
    assert len(training) + len(validation) == 1000
    if share == 1:
        assert len(held_out - validation) <= 1  # the removed one
        numbers = select_held_out(record, again.source, again.sides, 0, 5, again.groups).numbers
        if write is not write_parquet and write is not write_shards:  # whose names are renewed too
            assert log.changes == {"added": 1, "removed": 1, "renamed": 1, "replaced": 0, "left out": 0}
            assert numbers["changes"] == {"added": 1, "removed": 1, "renamed": 1}
        assert numbers["trained_on"] == 0 < numbers["trained_left_out"]
        samples = range(len(again.source))
        assert select_all(record, again.source, samples).numbers["trained_on"] == len(trained & (training | validation))
    assert not trained & {*again.divide(log.make_record()).digests[True].tolist()}  # at the next resume


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Files]:
    def files(contents: Contents, folder: str = "files") -> Files:
        paths = [tmp_path / folder / name for name in contents]
        (tmp_path / folder).mkdir(exist_ok=True)
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_bytes(content)
        return Files(list(map(str, paths)), root=tmp_path / folder)

    return files


def start(record: SampleRecord, source: Source, sides: tuple[list[int], list[int]], groups: list[int] | None = None):
    log = SampleLog((source, source), divide_source(record, source, *sides, groups), 2, 0)
    for side in (False, True):
        read_all(source, log, side)
    return log


def test_files_that_exchange_their_names_keep_their_sides(files: Callable[..., Files]) -> None:
    source = files({"a": b"1", "b": b"2", "c": b"3", "d": b"4"})
    record = start(SampleRecord(), source, ([0, 1], [2, 3])).make_record()
    log = start(record, files({"a": b"4", "b": b"2", "c": b"3", "d": b"1"}), ([0, 1], [2, 3]))
    assert (list_samples(log, False), list_samples(log, True)) == ([1, 3], [0, 2])


def test_copy_of_a_trained_sample_is_trained_on_and_another_content_keeps_its_name(files: Callable[..., Files]) -> None:
    record = start(SampleRecord(), files({"a": b"1", "b": b"2", "c": b"3"}), ([0, 1], [2])).make_record()
    log = start(record, files({"a": b"1", "b": b"22", "c": b"33", "d": b"1"}), ([2], [0, 1, 3]))
    assert (list_samples(log, False), list_samples(log, True)) == ([0, 1, 3], [2])
    assert log.changes == {"added": 1, "removed": 0, "renamed": 0, "replaced": 2, "left out": 0}
    gone = start(log.make_record(), files({"a": b"1"}, "other"), ([0], [])).make_record()
    copy = files({"x": b"2", "y": b"5"}, "new")
    assert gone.find_trained(copy, [0, 1]) == [0]  # also a content that was replaced, then removed


def test_rows_of_one_picture_keep_their_sides(files: Callable[..., Files], tmp_path: Path) -> None:
    source = Files(files({"a": b"1", "b": b"2"}).files * 2, root=tmp_path / "files")
    record = start(SampleRecord(), source, ([0, 1, 2], [3])).make_record()
    log = start(record, source, ([0, 1, 2], [3]))
    assert (list_samples(log, False), list_samples(log, True)) == ([0, 1, 2], [3])
    assert not any(log.changes.values())


def test_new_sample_follows_its_group_unless_it_is_on_both_sides(files: Callable[..., Files]) -> None:
    contents = {"a": b"1", "b": b"2"}
    record = start(SampleRecord(), files(contents), ([0], [1])).make_record()
    source = files({**contents, "c": b"33", "d": b"44", "e": b"55"})
    log = start(record, source, ([0, 3], [1, 2, 4]), [0, 1, 0, 1, 2])
    assert (list_samples(log, False), list_samples(log, True)) == ([0, 2], [1, 3, 4])
    log = start(record, source, ([0, 3], [1, 2, 4]), [0, 0, 0, 1, 2])
    assert (list_samples(log, False), list_samples(log, True)) == ([0, 3], [1, 4])
    assert log.changes["left out"] == 1


def test_sample_that_moves_from_training_to_validation_is_left_out(files: Callable[..., Files]) -> None:
    def divide(record: SampleRecord, train: Contents, val: Contents) -> SampleLog:
        sources = files(train, "train"), files(val, "val")
        sides = divide_sources(record, *sources, range(len(train)), range(len(val)))
        log = SampleLog(sources, sides, 0, 0)
        for side in (False, True):
            read_all(sources[side], log, side)
        return log

    log = divide(SampleRecord(), {"a": b"1", "b": b"2"}, {"c": b"3", "b": b"2"})
    assert log.count_shared() == 1
    log = divide(log.make_record(), {"a": b"1", "b": b"2"}, {"c": b"3", "b": b"2"})
    assert (list_samples(log, True), log.count_shared(), sum(log.changes.values())) == ([0, 1], 1, 0)
    log = divide(log.make_record(), {"b": b"2"}, {"c": b"3", "b": b"2", "x": b"1"})
    assert (list_samples(log, True), log.changes["left out"]) == ([0, 1], 1)


def test_samples_on_both_sides_are_trained_on(files: Callable[..., Files], tmp_path: Path) -> None:
    source = files({f"{seed}.ppm": make_image(seed) for seed in range(3)})
    data = Images(str(tmp_path / "files"), preprocess=Preprocess((2, 2), (0.5,), (0.5,)), unlabelled=True)
    assert data.training == data.validation == [0, 1, 2]  # too few to hold some out
    for _ in range(2):
        data.start_log(SampleRecord() if data.log is None else data.log.make_record())
        assert data.log is not None and data.training == data.validation == [0, 1, 2]
        for side in (False, True):
            read_all(source, data.log, side)
        assert data.trained_validation == 3
    selection = select_held_out(data.log.make_record(), source, ([0, 1, 2], [0, 1, 2]), 0, 0)
    assert selection[::2] == ([0, 1, 2], {"trained_on": 3})


def test_other_fold_evaluates_what_was_not_trained_on(files: Callable[..., Files]) -> None:
    source = files({"a": b"1", "b": b"2", "c": b"3", "d": b"4"})
    record = start(SampleRecord(), source, ([0, 1], [2, 3])).make_record()
    assert select_held_out(record, source, ([0, 3], [1, 2]), 1, 2)[::2] == (
        [2], {"trained_on": 0, "trained_left_out": 1, "changes": {}})  # fmt: skip
    assert select_held_out(record, source, ([2, 3], [0, 1]), 1, 2)[::2] == ([0, 1], {"trained_on": 2})
    assert select_held_out(None, source, ([2, 3], [0, 1]), 1, 2)[:3] == ([0, 1], [2, 3], {"trained_on": None})


def test_sample_that_cannot_be_read_does_not_count_as_trained_on(files: Callable[..., Files]) -> None:
    source = files({"a": b"1", "b": b"2", "c": b"3", "d": b"4"})
    record = start(SampleRecord(), source, ([0, 1], [2, 3])).make_record()
    selection = select_all(record, source, range(4))
    assert selection.numbers == {"trained_on": 2}
    assert selection.count_readable([0, 2, 3]) == {"trained_on": 1}
    assert select_all(None, source, range(4)).count_readable([0]) == {"trained_on": None}
    everything = select_held_out(record, source, ([2, 3], [0, 1]), 1, 2)
    assert everything.count_readable([1]) == {"trained_on": 1}
