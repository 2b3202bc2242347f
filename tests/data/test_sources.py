import numpy as np
import pytest
from PIL import Image

from vitkit.data.sources import open_source, require


def picture(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (3, 2), shade).save(path)


def test_digits_are_grey_bytes_with_balanced_labels():
    source = open_source("digits")
    assert len(source) == 1797
    assert source.classes == tuple("0123456789")
    image = source.picture(0)
    assert (image.mode, image.size, image.getextrema()) == ("L", (8, 8), (0, 239))
    assert source.labels[0] == 0
    assert source.name(7) == "digits[7]"


def test_mnist5k_has_500_digits_a_class():
    source = open_source("mnist5k")
    assert np.bincount(source.labels).tolist() == [500] * 10
    assert source.picture(4999).size == (28, 28)


def test_a_missing_package_is_named_with_its_fix():
    with pytest.raises(ValueError, match=r'^digits must find the package absent, .* pip install "vitkit\[demo\]"$'):
        require("absent", "digits")


def test_a_folder_is_its_class_folders_in_sorted_order(tmp_path):
    picture(tmp_path / "b" / "deep" / "er" / "2.JPG", shade=200)
    picture(tmp_path / "b" / "1.png", shade=100)
    picture(tmp_path / "a" / "3.bmp", shade=50)
    for hidden in ["b/.x.png", ".git/x.png", "a/.thumbs/x.png"]:
        picture(tmp_path / hidden)
    (tmp_path / "a" / "notes.txt").write_text("not a picture")
    picture(tmp_path / "cover.png")
    source = open_source(str(tmp_path))
    assert source.classes == ("a", "b")
    assert source.labels == [0, 1, 1]
    names = [source.name(index).removeprefix(f"{tmp_path}/") for index in range(len(source))]
    assert names == ["a/3.bmp", "b/1.png", "b/deep/er/2.JPG"]
    assert source.picture(1).getpixel((0, 0)) == 100


def test_a_folder_named_like_a_built_in_is_reached_with_a_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        picture(tmp_path / "digits" / name / "1.png")
    assert open_source("./digits").classes == ("cat", "dog")
    assert len(open_source("digits").classes) == 10


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "at least two folders, one for each class, got classes=[]"),
        (["cat/1.png"], "at least two folders, one for each class, got classes=['cat']"),
        (["cat/1.png", "dog/", "eel/readme.txt"], "got none in ['dog', 'eel']"),
        (["cat/"], "got none in ['cat']"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(folders, message, tmp_path):
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digist", "source must be a folder or one of digits, mnist5k, mnist5k-longtail, mnist5k-test, got source=digist; did you mean digits?"),
        ("flowers", "source must be a folder or one of digits, mnist5k, mnist5k-longtail, mnist5k-test, got source=flowers"),
        ("./flowers", "source must be a folder that exists, got source=./flowers"),
    ],
)
def test_an_unknown_source_names_what_is_possible(name, message):
    with pytest.raises(ValueError) as error:
        open_source(name)
    assert str(error.value) == message
