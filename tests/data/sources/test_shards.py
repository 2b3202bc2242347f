import json
import pickle
import socket
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import yaml

from vitkit.cli import main
from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.images import Images
from vitkit.data.omissions import Omission, Omissions
from vitkit.data.order import TrainingOrder
from vitkit.data.pictures import Loader
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source
from vitkit.data.sources.shards import Shards, expand_braces
from vitkit.data.sources.tar import Member, list_members

ROOT = Path(__file__).parents[3]
Shard = Callable[..., Path]
Picture = Callable[..., bytes]


@pytest.fixture
def shards(tmp_path: Path, shard: Shard, picture: Picture) -> str:
    """Three shards of 21, 22 and 23 samples in two classes."""
    for number in range(3):
        samples = []
        for index in range(21 + number):
            key = f"{number}/{index:03}"
            samples += [(f"{key}.png", picture(100 * number + index)), (f"{key}.cls", "ab"[index % 2])]
        shard(tmp_path / f"{number:02}.tar", samples)
    return str(tmp_path / "{00..02}.tar")


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("x/0.tar", ["x/0.tar"]),
        ("x/{08..10}.tar", ["x/08.tar", "x/09.tar", "x/10.tar"]),
        ("{9..11}.tar", ["9.tar", "10.tar", "11.tar"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
        ("{a,{0..1}}.tar", ["a.tar", "0.tar", "a.tar", "1.tar"]),
        ("{a}.tar", ["{a}.tar"]),
    ],
)
def test_braces_stand_for_paths(name: str, paths: list[str]) -> None:
    assert sorted(expand_braces(name)) == sorted(paths)


def test_a_range_goes_upwards() -> None:
    with pytest.raises(
        ValueError, match=r"^a range of shards must go upwards, got \{2\.\.1\}; source=x\{2\.\.1\}\.tar$"
    ):
        expand_braces("x{2..1}.tar")


def test_members_of_one_stem_are_one_sample(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    path = shard(
        tmp_path / "0.tar",
        [
            ("./a.b/1.JPG", picture(1, kind="JPEG")),
            ("./a.b/1.cls", "cat\n"),
            ("./a.b/1.seg.png", picture(9)),
            ("c/1.json", json.dumps({"label": "dog", "file_name": "1.png"})),
            ("c/1.png", picture(2)),
            ("c/1.txt", "a dog that barks"),
            ("2.png", picture(3)),
            ("2.txt", "cat"),
            (".hidden", "x"),
            ("._2.png", "x"),
            ("readme", "x"),
        ],
    )
    source = open_source(str(path))
    assert [source.get_name(index) for index in range(3)] == [f"{path}/./a.b/1.JPG", f"{path}/c/1.png", f"{path}/2.png"]
    assert (source.class_names, source.labels) == (("cat", "dog"), [0, 1, 0])
    assert [source.read_content(index) for index in range(3)] == [picture(1, kind="JPEG"), picture(2), picture(3)]
    assert source.read_image(2).size == (9, 7)


def test_json_member_holds_the_label_under_the_column(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    labels = [["a", "b"], [], "b"]
    samples = [(f"{n}.json", json.dumps({"tags": label})) for n, label in enumerate(labels)]
    path = shard(tmp_path / "0.tar", [*samples, *((f"{n}.png", picture(n)) for n in range(3))])
    source = open_source(str(path), columns=("image", "tags"))
    assert (source.class_names, source.labels) == (("a", "b"), [(0, 1), (), (1,)])


def test_named_column_is_read_from_no_other_member(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    members = [(f"{n}.{kind}", content) for n in range(2) for kind, content in (
        ("png", picture(n)), ("cls", str(n)), ("json", json.dumps({"fine": "ba"[n]})))]  # fmt: skip
    path = str(shard(tmp_path / "0.tar", members))
    assert open_source(path, columns=("png", "fine")).class_names == ("a", "b")
    with pytest.raises(ValueError, match="every picture must have a label, got none"):
        open_source(path, columns=("png", "lable"))


def test_columns_name_members(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    members = [(f"{n}.{kind}", content) for n in range(3) for kind, content in (
        ("Input.png", picture(n)), ("mask.png", picture(9)), ("target.cls", "ab"[n % 2]),
        ("meta.json", json.dumps({"label": "ba"[n % 2], "text": "x"})))]  # fmt: skip
    path = str(shard(tmp_path / "0.tar", members))
    with pytest.raises(
        ValueError, match=r"members are named \.input\.png \(3\), \.mask\.png \(3\), \.target\.cls \(3\), "
    ):
        open_source(path)
    source = open_source(path, columns=("Input.png", "target.cls"))
    assert (source.class_names, source.labels, source.read_content(2)) == (("a", "b"), [0, 1, 0], picture(2))
    assert open_source(path, columns=("Input.png", "meta.json")).labels == [1, 0, 1]
    assert open_source(path, CAPTIONS, ("mask.png", "target.cls")).captions == [("a",), ("b",), ("a",)]
    assert open_source(path, CAPTIONS, ("mask.png", "meta.json")).captions == [("x",)] * 3


def test_classes_txt_names_integer_labels(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    shard(tmp_path / "0.tar", [("1.png", picture(1)), ("1.cls", "10"), ("2.png", picture(2)), ("2.cls", "9")])
    assert open_source(str(tmp_path)).class_names == ("9", "10")
    (tmp_path / "classes.txt").write_text("".join(f"class {number}\n" for number in range(11)))
    source = open_source(str(tmp_path))
    assert (len(source.class_names), source.labels) == (11, [10, 9])
    (tmp_path / "classes.txt").write_text("one\ntwo\n")
    with pytest.raises(
        ValueError, match="^labels must be indices below 2, got others in .*/0.tar/1, .*/0.tar/2; source="
    ):
        open_source(str(tmp_path))


def test_empty_line_in_classes_txt_shifts_no_label(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    shard(tmp_path / "0.tar", [("1.png", picture(1)), ("1.cls", "0"), ("2.png", picture(2)), ("2.cls", "1")])
    (tmp_path / "classes.txt").write_text("\ufeffcat\r\n dog\x0c2\r\n\r\n", "utf-8")
    assert open_source(str(tmp_path)).class_names == ("cat", r"dog\u000c2")
    (tmp_path / "classes.txt").write_text("cat\n\ndog\n \nowl\n")
    with pytest.raises(ValueError, match="/classes.txt: every line must name a class, got none in line 2, line 4$"):
        open_source(str(tmp_path))


def test_shards_can_be_read_after_pickling(shards: str, picture: Picture) -> None:
    source = pickle.loads(pickle.dumps(open_source(shards)))
    assert source.read_content(21 + 22 + 5) == picture(205)
    assert source.read_end(0) == picture(0)[-4096:]
    assert source.count_bytes(0) == len(picture(0))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_equal_tarfile(form: int, tmp_path: Path) -> None:
    names = ["a.txt", "ü/b.txt", f"{'d' * 90}/{'e' * 90}.txt", "empty.txt"]
    names += [] if form == tarfile.USTAR_FORMAT else [f"{'long' * 100}/c.txt"]
    with tarfile.open(tmp_path / "0.tar", "w", format=form) as tar:
        for size, name in zip([3, 512, 513, 0, 9], names, strict=False):
            (tmp_path / "file").write_bytes(b"x" * size)
            member = tar.gettarinfo(str(tmp_path / "file"), name)
            member.mtime += 0.5
            with (tmp_path / "file").open("rb") as file:
                tar.addfile(member, file)
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
            member = tarfile.TarInfo("other")
            member.type, member.linkname = kind, "long" * 20
            tar.addfile(member)
    with tarfile.open(tmp_path / "0.tar") as tar:
        expected = [Member(entry.name, entry.offset_data, entry.size) for entry in tar if entry.isfile()]
    assert list(list_members(str(tmp_path / "0.tar"), Omissions())) == expected
    assert [member.path for member in expected] == names


def make_header(form: Literal[0, 1, 2] = tarfile.PAX_FORMAT, **fields: Any) -> bytes:
    """Return the headers of a member of a tar file."""
    member = tarfile.TarInfo()
    for name, value in fields.items():
        setattr(member, name, value)
    return member.tobuf(form)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_member_after_one_of_8_gib_is_read(form: Literal[1, 2], tmp_path: Path, picture: Picture) -> None:
    large, image, path = 9 * 2**30 + 1, picture(1), tmp_path / "0.tar"
    with path.open("wb") as file:  # 9 GiB of holes, which take no space
        file.write(make_header(form, name="1.bin", size=large))
        file.seek(-(-(file.tell() + large) // 512) * 512)
        file.write(make_header(form, name="2.png", size=len(image)) + image)
        file.truncate(-(-file.tell() // 512) * 512 + 1024)
    first, second = list_members(str(path), Omissions())
    assert (first.path, first.size, second.path, second.size) == ("1.bin", large, "2.png", len(image))
    shards = Shards([str(path)], ["2.png"], np.array([(0, second.offset, second.size)]), (), [-1])
    assert shards.read_content(0) == image
    path.write_bytes(make_header(form, name="1.bin", size=large) + bytes(1024))
    with pytest.raises(ValueError, match="^shards must be whole, got one that ends too early, after"):
        list(list_members(str(path), Omissions()))


def test_sparse_members_and_links_are_counted(tmp_path: Path, picture: Picture) -> None:
    image, path = picture(1), tmp_path / "0.tar"
    content = image + bytes(-len(image) % 512)
    header = bytearray(make_header(name="1.png", size=len(image), type=b"S"))
    header[482] = 1  # two more blocks of the map of holes
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 8 * 32)
    blocks = [bytes(504) + b"\1" + bytes(7), bytes(512)]
    records = {"GNU.sparse.major": "1", "GNU.sparse.name": "2.png"}
    parts = [bytes(header), *blocks, content]
    parts += [make_header(name="GNUSparseFile.7/2.png", size=len(image), pax_headers=records), content]
    parts += [make_header(name="3.png", type=tarfile.SYMTYPE, linkname="4.png")]
    parts += [make_header(name="4.png", size=len(image)), content, make_header(name="folder", type=tarfile.DIRTYPE)]
    path.write_bytes(b"".join(parts) + bytes(1024))
    source = open_source(str(path), UNLABELLED)
    assert [source.get_name(index) for index in range(len(source))] == [f"{path}/4.png"]
    assert source.read_content(0) == image
    assert [*source.omissions] == [
        Omission("members that tar stored as sparse files", 2, f"{path}/1.png"),
        Omission("members of type link or device", 1, f"{path}/3.png"),
    ]


def test_all_faults_of_shards_are_one_line(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    good = [("1.png", picture(1)), ("1.cls", "a")]
    shard(tmp_path / "0.tar", good)
    shard(tmp_path / "1.tar", [*good, ("2.cls", "b"), ("3.png", picture(3)), ("3.jpg", picture(3)), ("1.cls", "b")])
    whole = shard(tmp_path / "2.tar", [("9.png", picture(2, (99, 99))), ("9.cls", "b")]).read_bytes()
    (tmp_path / "2.tar").write_bytes(whole[:5000])
    (tmp_path / "3.tar").write_bytes(b"not a tar file" * 100)
    (tmp_path / "4.tar").write_bytes(b"\x1f\x8b" + bytes(1000))
    with pytest.raises(ValueError) as error:
        open_source(str(tmp_path / "{0..4}.tar"))
    assert str(error.value) == (
        f"members of a shard must have a name each, got twice in {tmp_path}/1.tar: 1.cls; "
        f"shards must be whole, got one that ends too early, after 5,000 bytes: {tmp_path}/2.tar; "
        f"shards must be plain tar files, got something else near byte 0: {tmp_path}/3.tar; "
        f"shards must be plain tar files, got one compressed by gzip: {tmp_path}/4.tar; "
        f"every sample must have one picture, got none in {tmp_path}/1.tar/2; "
        f"every sample must have one picture, got several in {tmp_path}/1.tar/3; "
        f"every picture must have a label, got none in {tmp_path}/1.tar/3; "
        "members are named .png (3), .cls (3), .jpg (1); a picture is named .jpg, .png or as other image files, "
        "and its annotation .cls, .json or .txt; "
        "name others by columns=[PICTURE, LABEL or TEXT], such as [input.jpg, target.cls]; "
        f"source={tmp_path}/0.tar and 4 more"
    )
    with pytest.raises(ValueError, match=r"^shards must exist, got 2 of 4 that do not: .*/5\.tar, .*/6\.tar$"):
        open_source(str(tmp_path / "{3..6}.tar"))
    with pytest.raises(ValueError, match="^shards must hold samples, got none; source="):
        open_source(str(shard(tmp_path / "5.tar", [])))


@pytest.mark.parametrize("cut", [1024, 1536, 1600])
def test_truncated_shard_is_refused(cut: int, tmp_path: Path, shard: Shard, picture: Picture) -> None:
    path = shard(tmp_path / "0.tar", [("1.png", picture(1)), ("1.cls", "a"), ("2.png", picture(2)), ("2.cls", "b")])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=f"^shards must be whole, got one that ends too early, after {cut:,} bytes:"):
        open_source(str(path))


@pytest.mark.soak
@pytest.mark.slow
def test_two_processes_with_two_workers_see_each_sample_once(shards: str) -> None:
    expected = Images(shards, preprocess=Preprocess((7, 9), (0.5,) * 3, (0.5,) * 3)).validation
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).parent / "ranks.py"), shards]
    ranks = [
        subprocess.Popen([*command, str(rank), "2", str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    parts = [json.loads(output) for output in outputs]
    assert all(len(part) > 0 for part in parts)
    assert sorted(index for part in parts for index, _ in part) == expected
    assert len({digest for part in parts for _, digest in part}) == len(expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_resumed_in_the_middle_reads_each_sample_once(workers: int, shards: str) -> None:
    data = Images(shards, preprocess=Preprocess((7, 9), (0.5,) * 3, (0.5,) * 3), batch=4)

    def loader(done: tuple[int, int]) -> Loader:
        order = TrainingOrder(data.training, 4, seed=5, done=done)
        return Loader(data.training_pictures, order, workers)

    whole = list(loader((1, 0)))
    resumed = [*whole[:6], *loader((1, 6))]
    assert len(resumed) == len(whole)
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one.indices, other.indices) and torch.equal(one.images, other.images)
    counts = Counter(index for batch in resumed for index in batch.indices.tolist())
    assert counts == Counter(data.training)


@pytest.mark.soak
def test_killed_run_on_shards_resumes_to_the_same_end(shards: str, tmp_path: Path) -> None:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    model = {"class_path": "vitkit.models.ViT", "init_args": {"patch_size": [4, 4], "encoder": encoder}}
    task = {"lr": 1e-3, "schedule": {"class_path": "vitkit.optim.WarmupCosine", "init_args": {"warmup": 1}}}
    shift = {"class_path": "torchvision.transforms.v2.RandomHorizontalFlip"}
    size = {"size": [8, 8], "mean": [0.5] * 3, "std": [0.5] * 3}
    trainer = {"max_epochs": 3, "enable_progress_bar": False, "accelerator": "cpu", "precision": "32-true"}
    config = {
        "model": {"class_path": "vitkit.tasks.classify.Classify", "init_args": {**task, "model": model}},
        "data": {
            "class_path": "vitkit.data.images.Images",
            "init_args": {"train": shards, "batch": 2, "workers": 2, "augment": [shift], **size},
        },
        "trainer": trainer,
        "checkpoint": {"every": 4},
        "threads": 1,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))

    def write_command(run: str) -> list[str]:
        return ["fit", "--config", str(tmp_path / "config.yaml"), "--run", str(tmp_path / run)]

    assert main(write_command("whole")) == 0
    metrics = tmp_path / "killed" / "metrics.csv"
    with subprocess.Popen(
        [sys.executable, "train.py", *write_command("killed")], cwd=ROOT, stdout=subprocess.DEVNULL
    ) as process:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 40:  # steps of 27 in an epoch
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert main(write_command("killed")) == 0
    assert metrics.read_text() == (tmp_path / "whole" / "metrics.csv").read_text()
