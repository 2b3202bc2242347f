import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.sources.open import open_source

Write = Callable[[str, str], str]
PICTURES = ("1.png", "2.png", "deep/3.png")


@pytest.fixture
def write(tmp_path: Path, picture: Callable[..., bytes]) -> Write:
    """A table's text beside three pictures, of which one is in a folder of its own."""
    for seed, name in enumerate(PICTURES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture(seed))

    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, "utf-8")
        return str(tmp_path / name)

    return write


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_rows_of_one_image_are_its_captions(write: Write, tmp_path: Path, picture: Callable[..., bytes]) -> None:
    text = 'text,file_name\na bee,2.png\n"one | two, three",deep/3.png\n two bees ,./2.png\na bee,2.png\n'
    captioned = open_source(write("t.csv", text), CAPTIONS)
    assert [captioned.pictures.get_name(index) for index in range(2)] == [f"{tmp_path}/2.png", f"{tmp_path}/deep/3.png"]
    assert captioned.captions == [("a bee", "two bees"), ("one | two, three",)]
    assert captioned.pictures.read_content(1) == picture(2)
    assert (captioned.pictures.labels, captioned.positives) == ([-1, -1], [0, 1])


def test_equal_paths_are_one_image(write: Write, tmp_path: Path) -> None:
    text = f"file_name,text\n2.png,a\n{tmp_path}/2.png,b\n../{tmp_path.name}/deep/../2.png,c\n"
    assert open_source(write("t.csv", text), CAPTIONS).captions == [("a", "b", "c")]


def test_open_quote_does_not_swallow_rows(write: Write) -> None:
    text = 'file_name\ttext\n1.png\t"open\n2.png\tx\ndeep/3.png\tat its end"\n'
    with pytest.raises(ValueError, match="every cell that begins with a quote must end with one.* ends in line 4"):
        open_source(write("t.tsv", text), CAPTIONS)
    assert open_source(write("t.tsv", 'file_name\ttext\n1.png\t"""open"\n'), CAPTIONS).captions == [('"open',)]


@pytest.mark.parametrize("name", ["t.tsv", "T.TSV"])
def test_tsv_is_separated_by_tabs_only(name: str, write: Write) -> None:
    text = 'file_name\ttext\ta,b;c,d\n1.png\tan ant, or two\t\n2.png\t"a ""bee"""\tx\n'
    assert open_source(write(name, text), CAPTIONS).captions == [("an ant, or two",), ('a "bee"',)]
    labels = open_source(write(name, "file_name\tlabel\ta,b,c,d\n1.png\tx\t\n2.png\ty|x\t\n"))
    assert (labels.class_names, labels.labels) == (("x", "y"), [(0,), (0, 1)])


def test_a_folder_may_be_a_table(write: Write, tmp_path: Path) -> None:
    write("metadata.jsonl", jsonl({"file_name": "1.png", "text": "x"}, {"file_name": "deep/3.png", "text": ["y", "z"]}))
    assert open_source(str(tmp_path), CAPTIONS).captions == [("x",), ("y", "z")]


def test_a_list_holds_several_captions(write: Write) -> None:
    rows = ({"p": "1.png", "t": ["b", " a ", None, "b", ""]}, {"p": "2.png", "t": "c"}, {"p": "1.png", "t": "d"})
    captioned = open_source(write("t.jsonl", jsonl(*rows)), CAPTIONS, ("p", "t"))
    assert captioned.captions == [("b", "a", "d"), ("c",)]


def test_parquet_may_hold_paths(write: Write, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    names = ["1.png", "2.png", "1.png"]
    for texts, expected in {
        ("a", "b", "c"): [("a", "c"), ("b",)],
        (("a", "b"), ("c",), ("a",)): [("a", "b"), ("c",)],
    }.items():
        parquet.write_table(pyarrow.table({"file_name": names, "text": list(texts)}), tmp_path / "t.parquet")
        captioned = open_source(str(tmp_path / "t.parquet"), CAPTIONS)
        assert captioned.captions == expected
        assert captioned.pictures.get_name(1) == str(tmp_path / "2.png")
    with pytest.raises(ValueError, match="columns must be among file_name, text, got texts; did you mean text?"):
        open_source(str(tmp_path / "t.parquet"), CAPTIONS, ("file_name", "texts"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "t.csv",
            "file_name,text\n1.png,a\n4.png,\n4.png,x\n5.png,b\n6.png,a,b\n,c\n2.png, \n",
            "every row must have 2 cells as the header has, got others in line 6; "
            "every row must name a picture, got none in line 7; "
            "pictures must exist, got 2 of 3 that do not: {0}/4.png, {0}/5.png; "
            "left out: 2 samples without a caption, such as line 3",
        ),
        ("t.csv", "file_name,text\n", "a table must have rows, got none"),
        (
            "t.csv",
            "file_name,caption\n1.png,a\n",
            "columns must be among file_name, caption, got text; name them by columns=[PICTURE, LABEL or TEXT]",
        ),
        ("t.tsv", 'file_name\ttext\n1.png\t"a\n', "table must be TSV in UTF-8, got unexpected end of data"),
        (
            "t.jsonl",
            jsonl(*({"file_name": n, "text": v} for n, v in (("1.png", 5), ("2.png", ["a", {}]), ("2.png", None)))),
            "captions must be text, or lists of it, got others in line 1 (5), line 2 ({{}}); "
            "every picture must have a caption, got none in line 3",
        ),
    ],
)  # fmt: skip
def test_all_faults_of_a_table_are_one_line(name: str, text: str, message: str, write: Write) -> None:
    path = write(name, text)
    with pytest.raises(ValueError) as error:
        open_source(path, CAPTIONS)
    assert str(error.value) == f"{message.format(Path(path).parent)}; source={path}"
