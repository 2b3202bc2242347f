import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from vitkit.data.sources.open import open_pictures, open_source
from vitkit.data.sources.source import list_images
from vitkit.support.errors import InputWarning
from vitkit.support.extras import require_package
from vitkit.support.progress import track_progress


def picture(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (3, 2), shade).save(path)


def test_a_missing_package_is_named_with_its_fix():
    with pytest.raises(ImportError, match=r'^digits needs the package absent, .* pip install "vitkit\[demo\]"$'):
        require_package("absent", "digits")


def test_a_folder_is_its_class_folders_in_sorted_order(tmp_path):
    picture(tmp_path / "b" / "deep" / "er" / "2.JPG", shade=200)
    picture(tmp_path / "b" / "1.png", shade=100)
    picture(tmp_path / "a" / "3.bmp", shade=50)
    for hidden in ["b/.x.png", ".git/x.png", "a/.thumbs/x.png"]:
        picture(tmp_path / hidden)
    (tmp_path / "a" / "notes.txt").write_text("not a picture")
    picture(tmp_path / "cover.png")
    source = open_source(str(tmp_path))
    assert source.class_names == ("a", "b")
    assert source.labels == [0, 1, 1]
    names = [source.get_name(index).removeprefix(f"{tmp_path}/") for index in range(len(source))]
    assert names == ["a/3.bmp", "b/1.png", "b/deep/er/2.JPG"]
    assert source.read_image(1).getpixel((0, 0)) == 100


def test_class_names_that_are_not_utf8_are_escaped(tmp_path):
    for name in ("caf\udce9", "tea"):
        picture(tmp_path / name / "1.png")
    assert open_source(str(tmp_path)).class_names == ("caf\\udce9", "tea")


def test_a_folder_named_like_a_built_in_is_reached_with_a_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        picture(tmp_path / "digits" / name / "1.png")
    assert open_source("./digits").class_names == ("cat", "dog")
    assert len(open_source("digits").class_names) == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data.zip", "an archive; unpack it by unzip or tar -xf, and name the folder"),
        ("a.pdf", "a file of another kind"),
    ],
)
def test_existing_file_that_is_no_source_is_described(name, message, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=f"^source must be [^;]* got source={tmp_path}/{name}, {message}$"):
        open_source(str(tmp_path / name))


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "at least two folders, one for each class, got classes=[]"),
        (["cat/1.png"], "at least two folders, one for each class, got classes=['cat']"),
        (["cat/1.png", "dog/", "eel/readme.txt"], "got none in ['dog', 'eel']"),
        (["cat/"], "got none in ['cat']"),
    ],
)
def test_all_faults_of_a_folder_are_one_line(folders, message, tmp_path):
    for path in folders:
        if path.endswith("png"):
            picture(tmp_path / path)
        else:
            (tmp_path / path).mkdir(parents=True)
    with pytest.raises(ValueError) as error:
        open_source(str(tmp_path))
    assert message in str(error.value)
    assert str(error.value).endswith(f"source={tmp_path}")
    assert "\n" not in str(error.value)


def test_class_folders_named_by_numbers_count(tmp_path):
    for name in ("10", "9", "-1"):
        picture(tmp_path / name / "1.png")
    assert open_source(str(tmp_path)).class_names == ("-1", "9", "10")


@pytest.mark.parametrize(
    ("folders", "options"),
    [
        ("train val", "--data.train {}/train --data.val {}/val"),
        ("Training Testing", "--data.train {}/Training --data.val {}/Testing"),
        ("TEST Train dev", "--data.train {}/Train --data.val {}/dev"),
        ("train_images images-valid test", "--data.train {}/train_images --data.val {}/images-valid"),
        ("train2017 val2017 testSet", "--data.train {}/train2017 --data.val {}/val2017"),
        ("held_out", "--data.val {}/held_out"),
    ],
)
def test_folders_of_splits_are_not_classes(folders: str, options: str, tmp_path: Path) -> None:
    for name in (*folders.split(), "__MACOSX"):
        picture(tmp_path / name / "cat" / "1.png")
    with pytest.raises(ValueError) as error:
        open_source(str(tmp_path))
    command = options.format(tmp_path, tmp_path)
    assert f"got one for each split, {sorted(folders.split())}; open one of them, in fit by {command}; source=" in str(
        error.value
    )


@pytest.mark.parametrize("names", [("test bench", "train", "tram"), ("test_1", "test_2"), ("train_犬", "train_猫")])
def test_classes_may_be_called_like_splits(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        picture(tmp_path / name / "1.png")
    assert open_source(str(tmp_path)).class_names == names


def test_the_end_of_a_file_is_its_last_bytes(tmp_path):
    for name, size in (("a", 10_000), ("b", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(os.urandom(size))
    source = open_source(str(tmp_path))
    for index in range(2):
        assert source.read_end(index) == source.read_content(index)[-4096:]
        assert source.count_bytes(index) == len(source.read_content(index))


KINDS = {
    "metadata.csv": lambda path: path.write_text("file_name,label\na/1.png,x\nb/1.png,y\n"),
    "metadata.jsonl": lambda path: path.write_text('{"file_name": "a/1.png", "label": [1]}'),
    "0.tar": lambda path: path.write_bytes(bytes(1024)),
    "a/": lambda path: picture(path / "1.png"),
}


@pytest.mark.parametrize(
    ("kinds", "matches"),
    [
        (["metadata.csv", "metadata.jsonl", "a/"], "metadata.csv, metadata.jsonl"),
        (["metadata.csv", "0.tar"], "metadata.csv, 0.tar"),
        (["0.tar", "a/"], "0.tar, a/"),
    ],
)
def test_a_folder_that_is_two_sources_is_refused(kinds: list[str], matches: str, tmp_path: Path) -> None:
    for kind in kinds:
        KINDS[kind](tmp_path / kind)
    with pytest.raises(ValueError) as error:
        open_source(str(tmp_path))
    assert (
        str(error.value) == f"source must be one of a table, shards and class folders, got {matches}; source={tmp_path}"
    )


def test_a_table_may_lie_beside_the_folders_of_its_pictures(tmp_path: Path) -> None:
    for kind in ("a/", "b/", "metadata.csv"):
        KINDS["a/" if kind == "b/" else kind](tmp_path / kind)
    source = open_source(str(tmp_path))
    assert (source.class_names, source.labels) == (("x", "y"), [0, 1])


KINDS_OF_SOURCE = "a folder, a table (.csv .tsv .jsonl .parquet), shards (.tar), hf:NAME"
BUILT_IN = "digits, mnist5k, mnist5k-few, mnist5k-longtail, mnist5k-test, openmoji, openmoji-words"
BUILT_IN += ", planted, planted-test"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digist", f"{KINDS_OF_SOURCE} or one of {BUILT_IN}, got source=digist; did you mean digits?"),
        ("flowers", f"{KINDS_OF_SOURCE} or one of {BUILT_IN}, got source=flowers"),
        ("", f"{KINDS_OF_SOURCE} or one of {BUILT_IN}, got source="),
        ("./flowers", f"{KINDS_OF_SOURCE} that exists, got source=./flowers"),
    ],
)
def test_unknown_source_lists_the_possible_ones(name: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        open_source(name)
    assert str(error.value) == f"source must be {message}"


def test_misspelt_path_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "flowers.csv").touch()
    with pytest.raises(ValueError, match="did you mean .*/flowers.csv"):
        open_source(str(tmp_path / "flower.csv"))


def test_progress_is_silent_unless_it_takes_a_second_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> Iterator[int]:
        import time

        yield 0
        time.sleep(1.1)
        yield from range(3)

    assert list(track_progress(range(5), "counting")) == list(range(5))
    assert capsys.readouterr().err == ""
    assert list(track_progress(slow(), "counting")) == [0, 0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(track_progress(slow(), "counting")) == [0, 0, 1, 2]
    assert "counting" in capsys.readouterr().err


def test_images_are_listed_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("b.png", "a/z.png", "a.png", "a/b/c.png"):
        picture(tmp_path / name)
    assert [path.removeprefix(f"{tmp_path}/") for path in list_images(tmp_path)] == [
        "a.png",
        "b.png",
        "a/z.png",
        "a/b/c.png",
    ]


def test_folder_without_class_folders_is_opened_without_labels(tmp_path: Path) -> None:
    picture(tmp_path / "0.png")
    picture(tmp_path / "day" / "1.png")
    for name, names in {"": ("0.png", "day/1.png"), "day": ("1.png",)}.items():
        with pytest.warns(InputWarning, match="has no class folders: its pictures have no labels"):
            source = open_pictures(str(tmp_path / name))
        assert [source.get_relative_name(index) for index in range(len(source))] == [*names]
        assert (source.labels, source.class_names) == ([-1] * len(names), ())
    assert open_pictures(str(tmp_path / "0.png")).class_names == ()
    picture(tmp_path / "night" / "2.png")
    assert open_pictures(str(tmp_path)).class_names == ("day", "night")
    assert len(open_pictures(str(tmp_path), unlabelled=True)) == 3
