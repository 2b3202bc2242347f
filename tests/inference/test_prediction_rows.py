import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitkit.data.preprocess import PictureError
from vitkit.inference import prediction_rows
from vitkit.inference.prediction import Prediction, Unreadable
from vitkit.inference.prediction_rows import Found

SURE = Prediction(Path("a.png"), ("cat, big", "dog"), (0.75, 0.25))
BROKEN = Unreadable(Path('b "quoted".png'), PictureError("picture must be readable, got picture=b"))
NONE = Prediction(Path("c.png"), (), ())


def lines(tmp_path: Path, header: str | None, row: prediction_rows.Row, *found: Found) -> list[str]:
    count, failures = prediction_rows.write(iter(found), header, row, tmp_path / "out")
    assert (count, failures) == (len(found), [one for one in found if isinstance(one, Unreadable)])
    return (tmp_path / "out").read_text("utf-8").splitlines()


def test_csv_has_a_pair_of_columns_a_class_and_a_row_for_every_picture(tmp_path: Path) -> None:
    found = list(csv.DictReader(lines(tmp_path, *prediction_rows.table(2), SURE, BROKEN)))
    assert found == [
        {
            "path": "a.png",
            "label_1": "cat, big",
            "probability_1": "0.75",
            "label_2": "dog",
            "probability_2": "0.25",
            "error": "",
        },
        {
            "path": 'b "quoted".png',
            **dict.fromkeys(("label_1", "probability_1", "label_2", "probability_2"), ""),
            "error": str(BROKEN.error),
        },
    ]


def test_csv_of_sets_has_them_in_one_column(tmp_path: Path) -> None:
    found = list(csv.DictReader(lines(tmp_path, *prediction_rows.table_of_sets(), SURE, BROKEN, NONE)))
    assert [row["labels"] for row in found] == ["cat, big|dog", "", ""]
    assert [row["probabilities"] for row in found] == ["0.75|0.25", "", ""]
    assert [bool(row["error"]) for row in found] == [False, True, False]


def test_jsonl_has_an_object_for_every_picture(tmp_path: Path) -> None:
    found = [json.loads(line) for line in lines(tmp_path, None, prediction_rows.json_object, SURE, BROKEN, NONE)]
    assert found == [
        {"path": "a.png", "labels": ["cat, big", "dog"], "probabilities": [0.75, 0.25]},
        {"path": 'b "quoted".png', "error": str(BROKEN.error)},
        {"path": "c.png", "labels": [], "probabilities": []},
    ]


def test_text_is_aligned_and_leaves_out_what_could_not_be_read(tmp_path: Path) -> None:
    assert lines(tmp_path, None, prediction_rows.text(8), SURE, BROKEN) == ["a.png     cat, big 75.0%  dog 25.0%"]


def test_a_name_that_is_not_text_is_spelt_out(tmp_path: Path) -> None:
    odd = SURE._replace(path=Path("\udcff☃.png"))  # the byte 255, as Python spells it
    assert (
        json.loads(lines(tmp_path, None, prediction_rows.json_object, odd)[0].replace("\\", "\\\\"))["path"]
        == "\\udcff☃.png"
    )


def test_rows_come_out_as_they_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    def found() -> Iterator[Found]:
        yield SURE
        assert capsys.readouterr().out == "a.png  cat, big 75.0%  dog 25.0%\n"
        yield SURE

    assert prediction_rows.write(found(), None, prediction_rows.text(0), None) == (2, [])


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [("a.csv", None, "csv"), ("a.jsonl", None, "jsonl"), ("a.txt", None, "text"), ("a.out", "csv", "csv")],
)
def test_the_end_of_a_file_names_its_format(tmp_path: Path, name: str, given: str | None, found: str) -> None:
    assert prediction_rows.checked_format(tmp_path / name, given) == found
    assert prediction_rows.checked_format(None, given) == (given or "text")


def test_a_folder_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out must be a new file in a folder that exists"):
        prediction_rows.checked_format(tmp_path / "no" / "a.csv", None)
