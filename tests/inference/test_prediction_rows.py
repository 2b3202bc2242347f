import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitkit.data.preprocess import PictureError
from vitkit.inference import prediction_rows
from vitkit.inference.prediction import Prediction, UnreadableImage
from vitkit.inference.prediction_rows import FormatRow, Outcome

SURE = Prediction(Path("a.png"), ("cat, big", "dog"), (0.75, 0.25))
BROKEN = UnreadableImage(Path('b "quoted".png'), PictureError("picture must be readable, got picture=b"))
NONE = Prediction(Path("c.png"), (), ())


def write_lines(tmp_path: Path, header: str | None, format_row: FormatRow, *outcomes: Outcome) -> list[str]:
    count, failures = prediction_rows.write_lines(iter(outcomes), header, format_row, tmp_path / "out")
    assert (count, failures) == (len(outcomes), [item for item in outcomes if isinstance(item, UnreadableImage)])
    return (tmp_path / "out").read_text("utf-8").splitlines()


def test_csv_has_a_row_for_every_image_with_two_columns_for_each_class(tmp_path: Path) -> None:
    rows = list(csv.DictReader(write_lines(tmp_path, *prediction_rows.make_csv_format(2), SURE, BROKEN)))
    assert rows == [
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


def test_csv_has_sets_of_labels_in_one_column(tmp_path: Path) -> None:
    rows = list(csv.DictReader(write_lines(tmp_path, *prediction_rows.make_label_set_format(), SURE, BROKEN, NONE)))
    assert [row["labels"] for row in rows] == ["cat, big|dog", "", ""]
    assert [row["probabilities"] for row in rows] == ["0.75|0.25", "", ""]
    assert [bool(row["error"]) for row in rows] == [False, True, False]


def test_jsonl_has_an_object_for_every_image(tmp_path: Path) -> None:
    lines = write_lines(tmp_path, None, prediction_rows.format_json_row, SURE, BROKEN, NONE)
    assert [json.loads(line) for line in lines] == [
        {"path": "a.png", "labels": ["cat, big", "dog"], "probabilities": [0.75, 0.25]},
        {"path": 'b "quoted".png', "error": str(BROKEN.error)},
        {"path": "c.png", "labels": [], "probabilities": []},
    ]


def test_text_is_aligned_and_leaves_out_unreadable_images(tmp_path: Path) -> None:
    lines = write_lines(tmp_path, None, prediction_rows.make_text_format(8), SURE, BROKEN)
    assert lines == ["a.png     cat, big 75.0%  dog 25.0%"]


def test_name_that_is_not_text_is_escaped(tmp_path: Path) -> None:
    prediction = SURE._replace(path=Path("\udcff☃.png"))  # the byte 255, as Python represents it
    (line,) = write_lines(tmp_path, None, prediction_rows.format_json_row, prediction)
    assert json.loads(line.replace("\\", "\\\\"))["path"] == "\\udcff☃.png"


def test_each_row_is_printed_before_the_next_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    def predict() -> Iterator[Outcome]:
        yield SURE
        assert capsys.readouterr().out == "a.png  cat, big 75.0%  dog 25.0%\n"
        yield SURE

    assert prediction_rows.write_lines(predict(), None, prediction_rows.make_text_format(0), None) == (2, [])


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("a.csv", None, "csv"), ("a.jsonl", None, "jsonl"), ("a.txt", None, "text"), ("a.out", "csv", "csv")],
)
def test_suffix_of_a_file_gives_its_format(tmp_path: Path, name: str, given: str | None, expected: str) -> None:
    assert prediction_rows.choose_format(tmp_path / name, given) == expected
    assert prediction_rows.choose_format(None, given) == (given or "text")


def test_missing_folder_is_refused_before_predictions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out must be a file in a folder that exists"):
        prediction_rows.choose_format(tmp_path / "no" / "a.csv", None)
