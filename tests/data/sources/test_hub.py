import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from vitkit.data.annotations.labels import LABELS
from vitkit.data.sources.hub import list_rows, parse_hub_name
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import COLUMNS, Source

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("unpacked")
Make = Callable[..., Any]


@pytest.fixture
def make(picture: Callable[..., bytes]) -> Make:
    """A data set of three pictures with these columns of labels."""

    def make(labels: dict[str, list[Any]], features: dict[str, Any], picture_column: str = "image") -> Any:
        pictures = [{"bytes": picture(seed), "path": f"{seed}.png"} for seed in range(3)]
        kinds = datasets.Features({picture_column: datasets.Image(), **features})
        return datasets.Dataset.from_dict({picture_column: pictures, **labels}, features=kinds)

    return make


def names(*names: str) -> Any:
    return datasets.ClassLabel(names=list(names))


def test_two_columns_of_one_name_in_a_csv_are_refused(tmp_path: Path) -> None:
    for title, problem in {"other": None, "label": "columns must have a name each, got several called label"}.items():
        (tmp_path / "t.csv").write_text(f"image,label,{title}\n0.png,a,x\n1.png,b,y\n")
        rows = datasets.load_dataset("csv", data_files=str(tmp_path / "t.csv"), split="train", cache_dir=tmp_path)
        with nullcontext() if problem is None else pytest.raises(ValueError, match=f"^{problem}; source=hf:x$"):
            assert list_rows(rows, "hf:x", LABELS, COLUMNS).annotations == ["a", "b"]


def test_a_saved_data_set_opens_by_split(make: Make, tmp_path: Path, picture: Callable[..., bytes]) -> None:
    rows = make({"label": [1, 0, 1]}, {"label": names("no", "yes")})
    datasets.DatasetDict(train=rows, test=rows.select([2, 1])).save_to_disk(tmp_path / "set")
    source = open_source(f"hf:{tmp_path / 'set'}")
    assert (source.class_names, source.labels) == (("no", "yes"), [1, 0, 1])
    test = open_source(f"hf:{tmp_path / 'set'}@test")
    assert test.labels == [1, 0]
    assert test.read_content(0) == picture(2) == source.read_content(2)
    assert (test.count_bytes(0), test.read_end(0)) == (len(picture(2)), picture(2))
    assert test.read_image(1).size == (9, 7)
    assert test.get_name(1) == f"hf:{tmp_path / 'set'}@test[1]"
    with pytest.raises(ValueError, match="there is no split val, only train, test"):
        open_source(f"hf:{tmp_path / 'set'}@val")


def test_a_folder_in_a_format_of_the_hub_opens(make: Make, tmp_path: Path, picture: Callable[..., bytes]) -> None:
    (tmp_path / "set").mkdir()
    make({"label": [2, 0, 1]}, {"label": names("x", "y", "z")}).to_parquet(tmp_path / "set" / "train-0.parquet")
    source = open_source(f"hf:{tmp_path / 'set'}")
    assert (source.class_names, source.labels) == (("x", "y", "z"), [2, 0, 1])
    assert [source.read_content(index) for index in range(3)] == [picture(seed) for seed in range(3)]
    assert len(open_source(f"hf:{tmp_path / 'set'}@train[:2]")) == 2
    with pytest.raises(
        ValueError, match=r"must be a data set that opens, got source=hf:.*@no \(ValueError: Unknown split"
    ):
        open_source(f"hf:{tmp_path / 'set'}@no")


@pytest.mark.parametrize("feature", ["classes", "integers", "text"])
def test_several_labels_are_lists(feature: str, make: Make, tmp_path: Path) -> None:
    kind = {"classes": names("a", "b", "c"), "integers": datasets.Value("int64"), "text": datasets.Value("string")}
    labels: list[list[Any]] = [[2, 0], [], [1]]
    if feature == "text":
        labels = [["abc"[label] for label in row] for row in labels]
    make({"label": labels}, {"label": datasets.List(kind[feature])}).save_to_disk(tmp_path / "set")
    source = open_source(f"hf:{tmp_path / 'set'}")
    assert source.labels == [(0, 2), (), (1,)]
    assert source.class_names == (("0", "1", "2") if feature == "integers" else ("a", "b", "c"))


def test_two_classes_of_one_name_in_a_data_set_are_told_apart(make: Make, tmp_path: Path) -> None:
    make({"label": [1, 0, 1]}, {"label": names("crane", "crane ")}).save_to_disk(tmp_path / "set")
    source = open_source(f"hf:{tmp_path / 'set'}")
    assert (source.class_names, source.labels) == (("crane", "crane (2)"), [1, 0, 1])


def test_columns_are_found_by_type_or_refused(make: Make, tmp_path: Path) -> None:
    number = datasets.Value("int64")
    labels = {"fine": [0, 1, 0], "size": [5, 6, 7]}
    make(labels, {"fine": names("a", "b"), "size": number}, "photo").save_to_disk(tmp_path / "one")
    assert open_source(f"hf:{tmp_path / 'one'}").labels == [0, 1, 0]
    assert open_source(f"hf:{tmp_path / 'one'}", columns=("photo", "size")).class_names == ("5", "6", "7")
    make(labels, {"fine": names("a", "b"), "size": names(*"01234567")}).save_to_disk(tmp_path / "two")
    with pytest.raises(ValueError) as error:
        open_source(f"hf:{tmp_path / 'two'}", columns=("picture", "sise"))
    assert str(error.value) == (
        "columns must be among image (Image), fine (ClassLabel), size (ClassLabel), got sise; did you mean size?"
        f"; name them by columns=[PICTURE, LABEL or TEXT]; source=hf:{tmp_path / 'two'}"
    )


def test_rows_without_label_are_refused(make: Make, tmp_path: Path) -> None:
    make({"label": [0, -1, None]}, {"label": names("a", "b")}).save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError) as error:
        open_source(f"hf:{tmp_path / 'set'}")
    assert (
        str(error.value) == f"every picture must have a label, got none in row 1, row 2; source=hf:{tmp_path / 'set'}"
    )


def test_image_column_of_paths_opens_files(tmp_path: Path, picture: Callable[..., bytes]) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/a/2.png"):
        (tmp_path / "set" / name).parent.mkdir(parents=True)
        (tmp_path / "set" / name).write_bytes(picture(len(name)))
    source = open_source(f"hf:{tmp_path / 'set'}")
    assert source.get_name(1) == str(tmp_path / "set" / "train" / "b" / "1.png")
    assert source.class_names == ("a", "b")


def test_column_without_images_is_refused(make: Make, tmp_path: Path) -> None:
    text, number = datasets.Value("string"), datasets.Value("int64")
    columns = {"label": [0, 1, 1], "note": ["a", None, "c"], "size": [1, 2, 3]}
    make(columns, {"label": names("a", "b"), "note": text, "size": number}).save_to_disk(tmp_path / "set")
    with pytest.raises(
        ValueError, match="^pictures must be files or their paths, got int64 in column size; source=hf:"
    ):
        open_source(f"hf:{tmp_path / 'set'}", columns=("size", "label"))
    with pytest.raises(ValueError) as error:
        open_source(f"hf:{tmp_path / 'set'}", columns=("note", "label"))
    assert str(error.value) == (
        "every row must name a picture, got none in row 1; pictures must exist, got 2 of 2 that do not: ./a, ./c; "
        f"source=hf:{tmp_path / 'set'}"
    )


def test_a_parquet_file_that_changed_is_read_again(make: Make, tmp_path: Path) -> None:
    def open_labels(labels: list[int]) -> Source:
        make({"label": labels}, {"label": names("a", "b")}).to_parquet(tmp_path / "t.parquet")
        return open_source(str(tmp_path / "t.parquet"))

    assert open_labels([0, 1, 0]).labels == [0, 1, 0]
    assert open_labels([1, 0, 1]).labels == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("hf:cifar10", ("cifar10", None, "train")),
        ("hf:uoft-cs/cifar10@test", ("uoft-cs/cifar10", None, "test")),
        ("hf:a/b:plain@train[:10%]", ("a/b", "plain", "train[:10%]")),
        ("hf:/data/x", ("/data/x", None, "train")),
    ],
)
def test_a_name_holds_path_configuration_and_split(name: str, parsed: tuple[str, str | None, str]) -> None:
    assert parse_hub_name(name) == parsed


@pytest.mark.parametrize("name", ["hf:", "hf:@test", "hf:a@", "hf::x"])
def test_a_name_without_a_part_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="source must be hf:NAME, hf:NAME@SPLIT or hf:NAME:CONFIG@SPLIT, got"):
        parse_hub_name(name)


def test_folder_name_may_hold_colon_and_at_sign(tmp_path: Path) -> None:
    (tmp_path / "a:b@c").mkdir()
    assert parse_hub_name(f"hf:{tmp_path}/a:b@c") == (f"{tmp_path}/a:b@c", None, "train")
    assert parse_hub_name(f"hf:{tmp_path}/a:b@c@test") == (f"{tmp_path}/a:b@c", None, "test")


def test_a_script_in_a_data_set_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "set.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="must be a data set that opens"):
        open_source(f"hf:{tmp_path / 'set'}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_unreachable_data_set_is_one_line() -> None:
    program = "from vitkit.data.sources.open import open_source; open_source('hf:no-such/thing')"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: source must be a data set that opens, got source=hf:no-such/thing (")
