import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq

from vitkit.convert.overrides import Overrides, choose_class_names
from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.annotations.labels import parse_labels
from vitkit.data.images import Images
from vitkit.data.pictures import ImageReading
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source
from vitkit.support.errors import format_few

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, picture: Callable[..., bytes]) -> Write:
    """A table's text beside three pictures, of which one is in a folder of its own."""
    for seed, name in enumerate(("1.png", "2.png", "deep/3.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture(seed))

    def write(name: str, text: str) -> str:
        (tmp_path / name).write_bytes(text.encode())
        return str(tmp_path / name)

    return write


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_a_table_names_pictures_and_labels(write: Write, picture: Callable[..., bytes]) -> None:
    source = open_source(
        write("t.csv", 'id,label,file_name\n7," cat ",1.png\n\n8,"a ""dog""",deep/3.png\n9,cat, 2.png\n')
    )
    assert source.class_names == ('a "dog"', "cat")
    assert source.labels == [1, 0, 1]
    assert source.read_content(1) == picture(2)
    assert source.get_name(1).endswith("deep/3.png")


def test_paths_of_windows_are_read(write: Write, picture: Callable[..., bytes], tmp_path: Path) -> None:
    path = write("t.csv", "file_name,label\ndeep\\3.png,a\n.\\1.png,b\na\\b.png,b\n")
    (tmp_path / "a\\b.png").write_bytes(picture(7))  # a name that holds one
    source = open_source(path)
    assert [source.read_content(index) for index in range(3)] == [picture(2), picture(0), picture(7)]


def test_rows_without_a_file_are_skipped_and_listed(write: Write, tmp_path: Path) -> None:
    path = write("t.csv", "file_name,label\n1.png,a\ngone.png,a\n2.png,b\ndeep/3.png,b\n")
    preprocess = Preprocess((4, 4), (0.5,), (0.5,))
    with pytest.raises(ValueError, match="pictures must exist, got 1 of 4 that do not"):
        Images(path, path, preprocess=preprocess)
    data = Images(path, path, preprocess=preprocess, reading=ImageReading(on_error="skip"))
    (batch,) = data.val_dataloader()
    assert batch.indices.tolist() == [0, 2, 3]
    assert [*batch.skipped] == [f"picture must be a file that exists, got picture={tmp_path}/gone.png"]
    with pytest.raises(ValueError, match="pictures must exist, got 1 of 1"):
        open_source(write("t.csv", "file_name,text\ngone.png,a\n"), CAPTIONS, skip_absent=True)


COLORS = ("file_name", "red", "green", "blue")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_column_for_each_class_is_a_set_of_labels(name: str, write: Write, tmp_path: Path) -> None:
    rows = [("1.png", 1, 0, 1), ("2.png", 0, 0, 0), ("deep/3.png", 1, 0, 0)]
    if name == "t.parquet":
        columns = dict(zip(COLORS, zip(*rows, strict=True), strict=True))
        pq.write_table(pa.table(columns), tmp_path / name)
        path = str(tmp_path / name)
    elif name == "t.jsonl":
        path = write(name, jsonl(*(dict(zip(COLORS, row, strict=True)) for row in rows)))
    else:
        path = write(name, "\n".join(",".join(map(str, row)) for row in [COLORS, *rows]))
    source = open_source(path, columns=COLORS)
    assert (source.class_names, source.labels) == (("red", "green", "blue"), [(0, 2), (), (0,)])
    with pytest.raises(ValueError, match="columns must be two, of the picture and its annotation, got columns="):
        open_source(path, CAPTIONS, COLORS)


def test_other_values_in_a_column_of_a_class_are_named(write: Write) -> None:
    path = write("t.csv", "file_name,red,green\n1.png,1.0,False\n2.png,2,0\ndeep/3.png,0,\n")
    with pytest.raises(ValueError, match=r"got others in line 3 \(red=2, not 0 or 1\), line 4 \(green=, not 0 or 1\)"):
        open_source(path, columns=("file_name", "red", "green"))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_csv_is_read_as_spreadsheets_write_it(delimiter: str, mark: str, write: Write) -> None:
    rows = [("file_name", "label"), ("1.png", "ä"), ("2.png", "ö, or ü; so")]
    text = "".join(f'"{one}"{delimiter}"{other}"\r\n' for one, other in rows)
    source = open_source(write("T.CSV", mark + text))
    assert source.class_names == ("ä", "ö, or ü; so")


def test_columns_may_be_named(write: Write) -> None:
    path = write("t.csv", "path,kind\n1.png,a\n2.png,b\n")
    assert open_source(path, columns=("path", "kind")).labels == [0, 1]
    with pytest.raises(ValueError) as error:
        open_source(write("t.csv", "filename,labels,x\n1.png,a,b\n"))
    assert str(error.value) == (
        "columns must be among filename, labels, x, got file_name, label; did you mean filename?; did you mean labels?"
        f"; name them by columns=[PICTURE, LABEL or TEXT]; source={path}"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "file_name,label\n1.png,b|a\n2.png,\ndeep/3.png,c|a| a \n"),
        ("t.jsonl", jsonl(*({"file_name": n, "label": v} for n, v in [("1.png", ["b", "a"]), ("2.png", None),
                                                                      ("deep/3.png", ["c", "a", "a"])]))),
        ("t.jsonl", jsonl({"file_name": "1.png", "label": ["a", "b"]}, {"file_name": "2.png", "label": []},
                          {"file_name": "deep/3.png", "label": ["a", "c"]})),
    ],
)  # fmt: skip
def test_delimited_labels_are_sets(name: str, text: str, write: Write) -> None:
    source = open_source(write(name, text))
    assert source.multilabel
    assert (source.class_names, source.labels) == (("a", "b", "c"), [(0, 1), (), (0, 2)])


@pytest.mark.parametrize(
    "text", ["file_name,label,label\n1.png,a,x\n2.png,b,x\n", "label;file_name; label\na;1.png;b\n"]
)
def test_two_columns_of_one_name_are_refused(text: str, write: Write) -> None:
    path = write("t.csv", text)
    with pytest.raises(ValueError) as error:
        open_source(path)
    assert str(error.value) == f"columns must have a name each, got several called label; source={path}"
    path = write("t.csv", "file_name,label,,,x,x\n1.png,a,,,1,2\n2.png,b,,,3,4\n")
    assert open_source(path).labels == [0, 1]  # columns that are not read


def test_row_without_keys_names_no_picture(write: Write) -> None:
    rows = '{"file_name": "1.png", "label": "a"}\n\n{"file_name": "2.png", "label": "b"}\n'
    assert open_source(write("t.jsonl", rows)).labels == [0, 1]
    with pytest.raises(ValueError, match="every row must name a picture, got none in line 2;"):
        open_source(write("t.jsonl", rows.replace("\n\n", "\n{}\n")))


def test_two_keys_of_one_name_are_refused(write: Write) -> None:
    path = write(
        "t.jsonl", '{"file_name": "1.png", "label": "a"}\n{"file_name": "2.png", "label": "b", "label": "a"}\n'
    )
    with pytest.raises(
        ValueError, match="^every line must be a JSON object in UTF-8 whose keys differ, got others in line 2; "
    ):
        open_source(path)


@pytest.mark.parametrize("kind", ["string", "binary"])
@pytest.mark.parametrize("name", ["file_name", "label"])
def test_two_columns_of_one_name_in_parquet_are_refused(kind: str, name: str, write: Write, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [arrow.array([b"1.png", b"2.png"]).cast(kind), *[arrow.array(["a", "b"])] * 2]
    path = write("t.parquet", "")
    parquet.write_table(arrow.Table.from_arrays(columns, names=["file_name", "label", name]), path)
    with pytest.raises(ValueError) as error:
        open_source(path)
    assert str(error.value) == f"columns must have a name each, got several called {name}; source={path}"


def test_several_labels_reach_the_batch_as_flags(write: Write) -> None:
    lines = "".join(f"{name},{label}\n" for label in ("a|b", "b", "a") for name in ("1.png", "2.png", "deep/3.png"))
    path = write("t.csv", f"file_name,label\n{lines}")
    data = Images(path, preprocess=Preprocess((7, 9), (0.5,) * 3, (0.5,) * 3), batch=4, folds=3)
    batch = next(iter(data.val_dataloader()))
    assert (batch.labels.dtype, batch.labels.shape) == (torch.bool, (3, 2))
    for row, index in zip(batch.labels, batch.indices, strict=True):
        assert row.nonzero().flatten().tolist() == list(data.source.labels[int(index)])


@pytest.mark.parametrize("labels", [["10", "9", "9"], [10, 9, 9], ["10", 9, 9]])
def test_numeric_classes_are_in_numeric_order(labels: list[Any]) -> None:
    assert parse_labels(labels, "abc") == (("9", "10"), [1, 0, 0], [])


def test_labels_may_be_indices_of_names() -> None:
    assert parse_labels([2, "0", 1], "abc", "xyz") == (("x", "y", "z"), [2, 0, 1], [])
    assert parse_labels([[2, 0], [], [-1]], "abc", "xyz") == (("x", "y", "z"), [(0, 2), (), ()], [])
    assert parse_labels([3, 0, -1], "abc", "xyz").problems == [
        "every picture must have a label, got none in c",
        "labels must be indices below 3, got others in a",
    ]


def test_class_names_of_data_are_one_line_without_controls() -> None:
    names, escaped = ["\x1b[31mred\nx", "tea\x9b", "dög 🐕"], ("\\u001b[31mred\\u000ax", "tea\\u009b", "dög 🐕")
    assert parse_labels([0, 1, 2], "abc", names) == (escaped, [0, 1, 2], [])
    assert {*parse_labels(names, "abc").class_names} == {*escaped}
    assert choose_class_names(Overrides(classes=tuple(names)), 3) == (escaped, [])  # of an imported model


def test_two_classes_of_one_name_are_told_apart_or_refused() -> None:
    assert parse_labels([0, 1, 2], "abc", ["x", "x ", "y"]) == (("x", "x (2)", "y"), [0, 1, 2], [])
    assert parse_labels(["caf\xe9", "cafe\u0301", "tea"], "abc").problems == [
        "names of classes must differ in more than white space and Unicode form, got caf\xe9 in two spellings"
    ]


def test_long_lists_in_errors_are_shortened() -> None:
    assert format_few(range(3)) == "0, 1, 2"
    assert format_few(range(2003)) == "0, 1, 2 and 2,000 more"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "t.csv",
            "file_name,label\n1.png,a\n4.png,\n5.png,b\n6.png,a,b\n2.png\n,c\n7.png,c\n8.png,a\n",
            "every row must have 2 cells as the header has, got others in line 5, line 6; "
            "every picture must have a label, got none in line 3; every row must name a picture, got none in line 7; "
            "pictures must exist, got 4 of 5 that do not: {0}/4.png, {0}/5.png, {0}/7.png and 1 more",
        ),
        ("t.csv", "file_name,label\n", "a table must have rows, got none"),
        ("t.csv", "", "table must name its columns in the first row, got none"),
        ("t.csv", "file_name,label\n1.png,a\n2.png,a\n", "labels must be of at least two classes, got a"),
        ("t.csv", 'file_name,label\n1.png,"a\n', "table must be CSV in UTF-8, got unexpected end of data"),
        ("t.jsonl", "", "a table must have rows, got none"),
        (
            "t.jsonl",
            '{"file_name": "1.png", "label": 1}\n{"file_name": \n\n[]\n{"file_name": "2.png", "label": 2}',
            "every line must be a JSON object in UTF-8 whose keys differ, got others in line 2, line 4",
        ),
        (
            "t.jsonl",
            jsonl(*({"file_name": n, "label": v} for n, v in (("1.png", 0.5), (2, "a"), ("2.png", {})))),
            "labels must be text or integers, or lists of them, got others in line 1 (0.5), line 3 ({{}}); "
            "every row must name a picture, got none in line 2",
        ),
    ],
)  # fmt: skip
def test_all_faults_of_a_table_are_one_line(name: str, text: str, message: str, write: Write) -> None:
    path = write(name, text)
    with pytest.raises(ValueError) as error:
        open_source(path)
    assert str(error.value) == f"{message.format(Path(path).parent)}; source={path}"
    assert "\n" not in str(error.value)


def test_csv_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("file_name,label\n1.png,ä\n".encode("latin-1"))
    with pytest.raises(ValueError, match="^table must be CSV in UTF-8, got 'utf-8' codec can't decode"):
        open_source(str(tmp_path / "t.csv"))


def test_parquet_equals_csv(write: Write, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    write("t.csv", "")
    names = ["1.png", "2.png", "deep/3.png"]
    for labels, expected in {
        (10, 9, 9): (("9", "10"), [1, 0, 0]),
        (("b", "a"), None, ("a",)): (("a", "b"), [(0, 1), (), (0,)]),
    }.items():
        table = pyarrow.table({"file_name": pyarrow.array(names).dictionary_encode(), "label": list(labels)})
        parquet.write_table(table, tmp_path / "t.parquet")
        source = open_source(str(tmp_path / "t.parquet"))
        assert (source.class_names, source.labels) == expected
        assert source.get_name(2) == str(tmp_path / "deep" / "3.png")
    with pytest.raises(ValueError, match="columns must be among file_name, label, got lable; did you mean label?"):
        open_source(str(tmp_path / "t.parquet"), columns=("file_name", "lable"))
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match="^table must be readable as Parquet, got "):
        open_source(str(tmp_path / "t.parquet"))
