import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.cli import main
from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.preprocess import read_image
from vitkit.data.sources.open import open_source

TEXTS = {"a.png": ("A red  square!", "it is red"), "b.png": ("a red square",), "c.png": ("\N{HEAVY BLACK HEART}",)}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number, name in enumerate(TEXTS):
        Image.fromarray(np.full((4, 6, 3), 60 * number, np.uint8)).save(tmp_path / name)
    rows = [f"{name}\t{text}" for name, texts in TEXTS.items() for text in texts]
    (tmp_path / "pairs.tsv").write_text("\n".join(["file_name\ttext", *rows]), "utf-8")
    return tmp_path / "pairs.tsv"


def test_what_is_unpacked_is_read_back_as_it_was(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["unpack", str(table), str(tmp_path / "files")]) == 0
    assert f"3 pictures with captions in {tmp_path}/files" in capsys.readouterr().out
    names = ["a_red_square-2.png", "a_red_square.png", "picture.png"]
    assert sorted(path.name for path in (tmp_path / "files").glob("*.png")) == names
    again = open_source(str(tmp_path / "files"), CAPTIONS)
    assert [*again.captions] == [TEXTS["b.png"], TEXTS["a.png"], TEXTS["c.png"]]
    assert [np.asarray(again.pictures.read_image(index)).max() for index in range(3)] == [60, 0, 120]


def test_column_of_texts_may_have_a_comma_in_its_name(table: Path, tmp_path: Path):
    table.write_text(table.read_text("utf-8").replace("\ttext\n", "\ta, b\n"), "utf-8")
    assert main(["unpack", str(table), str(tmp_path / "files"), "--columns", "file_name", "a, b"]) == 0


def test_name_that_is_not_utf8_is_escaped_on_the_screen(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["unpack", str(table), str(tmp_path / "caf\udce9")]) == 0
    assert f"3 pictures with captions in {tmp_path}/caf\\udce9" in capsys.readouterr().out


def test_pictures_that_cannot_be_read_are_told(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "b.png").write_bytes(b"no picture")
    assert main(["unpack", str(table), str(tmp_path / "files")]) == 1
    assert f"error: picture must be readable, got picture={tmp_path}/b.png" in capsys.readouterr().err
    assert len([*(tmp_path / "files").iterdir()]) == 4


@pytest.mark.parametrize(("mode", "name"), [("CMYK", "x.jpg"), ("LAB", "x.tif"), ("I", "x.tif"), ("I;16", "x.tif")])
def test_picture_in_a_mode_without_png_is_converted(mode: str, name: str, tmp_path: Path):
    Image.new(mode, (6, 4)).save(tmp_path / name)
    (tmp_path / "pairs.csv").write_text(f"file_name,text\n{name},x\n")
    assert main(["unpack", str(tmp_path / "pairs.csv"), str(tmp_path / "files")]) == 0
    image = read_image(tmp_path / "files" / "x.png")
    assert image.size == (6, 4) and image.mode in ("L", "RGB", "I;16")


def test_nothing_is_written_into_a_folder_that_holds_something(table: Path, tmp_path: Path):
    before = sorted(tmp_path.iterdir())
    assert main(["unpack", str(table), str(tmp_path)]) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_caption_of_two_lines_stays_one_and_a_long_name_is_cut(table: Path, tmp_path: Path):
    long = "\N{MATHEMATICAL SCRIPT CAPITAL A}" * 80  # 320 bytes
    rows = [{"file_name": "a.png", "text": ["one\r\ntwo", "one two"]}, {"file_name": "b.png", "text": long}]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    assert main(["unpack", str(tmp_path / "pairs.jsonl"), str(tmp_path / "files")]) == 0
    assert [*open_source(str(tmp_path / "files"), CAPTIONS).captions] == [("one two",), (long,)]


def test_a_caption_with_other_separators_is_read_back_as_it_was(table: Path, tmp_path: Path):
    odd = "one\u2028two\u2029\x85\x0b\x0c\x1c\x1d\x1ethree"
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"file_name": "a.png", "text": odd}), "utf-8")
    assert main(["unpack", str(tmp_path / "pairs.jsonl"), str(tmp_path / "files")]) == 0
    assert [*open_source(str(tmp_path / "files"), CAPTIONS).captions] == [(odd,)]
