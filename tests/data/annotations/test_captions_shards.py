import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.omissions import Omission
from vitkit.data.sources.open import open_source

Shard = Callable[..., Path]
Picture = Callable[..., bytes]


def test_captions_are_in_texts_and_in_json(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    path = shard(
        tmp_path / "0.tar",
        [
            ("a.b/1.JPG", picture(1, kind="JPEG")),
            ("a.b/1.txt", "a cat\n two cats\n\n"),
            ("c/1.json", json.dumps({"caption": "a dog\nthat barks", "text": "sign", "label": 3})),
            ("c/1.txt", "unused"),
            ("c/1.png", picture(2)),
            ("2.png", picture(3)),
            ("2.json", json.dumps({"text": ["x", "y"]})),
            ("3.png", picture(4)),
            ("3.txt", "z"),
            ("3.json", json.dumps({"caption": None, "width": 9})),
        ],
    )
    captioned = open_source(str(path), CAPTIONS)
    assert captioned.captions == [("a cat", "two cats"), ("a dog\nthat barks",), ("x", "y"), ("z",)]
    assert [captioned.pictures.get_name(index) for index in range(2)] == [f"{path}/a.b/1.JPG", f"{path}/c/1.png"]
    assert captioned.pictures.labels == [-1] * 4
    captioned = pickle.loads(pickle.dumps(captioned))
    assert [captioned.pictures.read_content(index) for index in (1, 3)] == [picture(2), picture(4)]


def test_captions_in_shards_are_split_at_line_ends_only(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    odd = "one\u2028two\u2029\x85\x0b\x0c\x1c\x1d\x1ethree"
    shard(tmp_path / "0.tar", [("1.png", picture(1)), ("1.txt", f"{odd}\nb\rc\r\nd\n")])
    assert open_source(str(tmp_path), CAPTIONS).captions == [(odd, "b", "c", "d")]


def test_column_selects_the_caption(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    about = {"caption": "short", "long": "a long one"}
    shard(tmp_path / "0.tar", [("1.png", picture(1)), ("1.json", json.dumps(about)), ("1.txt", "short")])
    assert open_source(str(tmp_path), CAPTIONS, ("image", "long")).captions == [("a long one",)]


def test_img2dataset_shards_open(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    for number in range(2):
        members: list[tuple[str, bytes | str]] = []
        for sample in (0, 2):  # the second download failed, and left a line in the .parquet alone
            key, text = f"{number:05}{sample:04}", f"caption {number} {sample}"
            about = {"caption": text, "url": "http://x", "key": key, "status": "success", "error_message": None}
            members += [(f"{key}.jpg", picture(10 * number + sample, kind="JPEG"))]
            members += [(f"{key}.json", json.dumps(about)), (f"{key}.txt", text)]
        shard(tmp_path / f"{number:05}.tar", members)
        (tmp_path / f"{number:05}.parquet").write_bytes(b"PAR1")
        (tmp_path / f"{number:05}_stats.json").write_text("{}")
    expected = [("caption 0 0",), ("caption 0 2",), ("caption 1 0",), ("caption 1 2",)]
    for name in (f"{tmp_path}", f"{tmp_path}/{{00000..00001}}.tar"):
        captioned = open_source(name, CAPTIONS)
        assert captioned.captions == expected
        assert captioned.pictures.get_name(3) == f"{tmp_path}/00001.tar/000010002.jpg"
        assert captioned.pictures.read_content(3) == picture(12, kind="JPEG")


def test_samples_without_caption_are_counted_as_omitted(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    samples = [(f"{n}.png", picture(n)) for n in range(4)]
    texts = [("0.txt", ""), ("2.txt", "two"), ("3.json", json.dumps({"caption": "", "text": "three"}))]
    path = shard(tmp_path / "0.tar", [*samples, *texts])
    captioned = open_source(str(path), CAPTIONS)
    assert (captioned.captions, captioned.pictures.read_content(0)) == ([("two",), ("three",)], picture(2))
    assert (len(captioned.pictures), len(captioned.positives)) == (2, 2)
    assert [*captioned.pictures.omissions] == [Omission("samples without a caption", 2, f"{path}/0")]
    path = shard(tmp_path / "1.tar", samples)
    with pytest.raises(ValueError) as error:
        open_source(str(path), CAPTIONS)
    places = ", ".join(f"{path}/{n}" for n in range(3))
    assert str(error.value) == (
        f"every picture must have a caption, got none in {places} and 1 more; members are named .png (4); a picture is "
        "named .jpg, .png or as other image files, and its annotation .json or .txt; "
        f"name others by columns=[PICTURE, LABEL or TEXT], such as [input.jpg, target.cls]; source={path}"
    )


def test_all_faults_of_shards_are_one_line(tmp_path: Path, shard: Shard, picture: Picture) -> None:
    path = shard(
        tmp_path / "0.tar",
        [
            ("1.png", picture(1)), ("1.json", "[1]"),
            ("2.png", picture(2)), ("2.txt", b"\xff"),
            ("3.txt", "no picture"),
            ("4.png", picture(4)), ("4.jpg", picture(4)), ("4.txt", "x"),
            ("5.png", picture(5)), ("5.json", json.dumps({"caption": 7})),
            ("6.png", picture(6)),
        ],
    )  # fmt: skip
    with pytest.raises(ValueError) as error:
        open_source(str(path), CAPTIONS)
    assert str(error.value) == (
        f"every sample must have one picture, got none in {path}/3; "
        f"every sample must have one picture, got several in {path}/4; "
        f"captions must be text, or lists of it, got others in {path}/1 (a JSON object is needed, got list), "
        f"{path}/2 (not in UTF-8), {path}/5 (7); members are named .png (5), .txt (3), .json (2), .jpg (1); "
        "a picture is named .jpg, .png or as other image files, and its annotation .json or .txt; "
        "name others by columns=[PICTURE, LABEL or TEXT], such as [input.jpg, target.cls]; "
        f"left out: 1 sample without a caption, such as {path}/6; source={path}"
    )
    with pytest.raises(ValueError, match="^shards must hold samples, got none; source="):
        open_source(str(shard(tmp_path / "1.tar", [])), CAPTIONS)
    with pytest.raises(ValueError, match=r"^shards must exist, got 1 of 1 that do not: .*/9\.tar$"):
        open_source(str(tmp_path / "9.tar"), CAPTIONS)
