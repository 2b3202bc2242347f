from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.sources.open import open_source

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("unpacked")
Make = Callable[[dict[str, list[Any]]], Any]
TEXT = datasets.Value("string")


@pytest.fixture
def make(picture: Callable[..., bytes]) -> Make:
    """A data set of three pictures with these columns of texts, or of lists of them."""

    def make(columns: dict[str, list[Any]]) -> Any:
        pictures = [{"bytes": picture(seed), "path": f"{seed}.png"} for seed in range(3)]
        kinds = {name: datasets.List(TEXT) if isinstance(cells[0], list) else TEXT for name, cells in columns.items()}
        features = datasets.Features({"image": datasets.Image(), **kinds})
        return datasets.Dataset.from_dict({"image": pictures, **columns}, features=features)

    return make


def test_a_saved_data_set_opens_by_split(make: Make, tmp_path: Path, picture: Callable[..., bytes]) -> None:
    rows = make({"text": ["a", "b", " a "]})
    datasets.DatasetDict(train=rows, test=rows.select([2, 1])).save_to_disk(tmp_path / "set")
    train, test = (open_source(f"hf:{tmp_path / 'set'}{split}", CAPTIONS) for split in ("", "@test"))
    assert train.captions == [("a",), ("b",), ("a",)]
    assert (train.positives, train.groups, train.pictures.labels) == ([0, 1, 0], [0, 1, 0], [-1] * 3)
    assert test.captions == [("a",), ("b",)]
    assert test.pictures.read_content(0) == picture(2) == train.pictures.read_content(2)
    assert test.pictures.get_name(1) == f"hf:{tmp_path / 'set'}@test[1]"


@pytest.mark.parametrize("column", ["text", "caption", "captions", "anything"])
def test_caption_column_is_found_by_name_or_type(column: str, make: Make, tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {column: [["a", "b"], ["c"], ["d", "d"]]}
    more: dict[str, list[Any]] = {} if column == "anything" else {"file": ["x", "y", "z"]}
    make(more | columns).save_to_disk(tmp_path / "set")
    assert open_source(f"hf:{tmp_path / 'set'}", CAPTIONS).captions == [("a", "b"), ("c",), ("d",)]


def test_ambiguous_columns_are_refused(make: Make, tmp_path: Path) -> None:
    make({"long": ["a", "b", "c"], "short": ["d", "e", "f"]}).save_to_disk(tmp_path / "set")
    name = f"hf:{tmp_path / 'set'}"
    assert open_source(name, CAPTIONS, ("image", "short")).captions == [("d",), ("e",), ("f",)]
    for column, hint in {"text": "", "lonk": "; did you mean long?"}.items():
        with pytest.raises(ValueError) as error:
            open_source(name, CAPTIONS, ("image", column))
        assert str(error.value) == (
            f"columns must be among image (Image), long (Value), short (Value), got {column}{hint}"
            f"; name them by columns=[PICTURE, LABEL or TEXT]; source={name}"
        )


def test_requested_column_is_never_replaced(make: Make, tmp_path: Path) -> None:
    make({"caption": ["a", "b", "c"]}).save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError, match="got captoin; did you mean caption?"):
        open_source(f"hf:{tmp_path / 'set'}", CAPTIONS, ("image", "captoin"))


def test_rows_without_caption_are_left_out(make: Make, tmp_path: Path) -> None:
    make({"text": ["a", None, ""]}).save_to_disk(tmp_path / "set")
    captioned = open_source(f"hf:{tmp_path / 'set'}", CAPTIONS)
    assert captioned.captions == [("a",)]
    assert captioned.pictures.omissions.format(0) == ["left out: 2 samples without a caption, such as row 1"]


def test_a_parquet_may_hold_the_pictures(make: Make, tmp_path: Path, picture: Callable[..., bytes]) -> None:
    make({"text": ["a", "b", "c"]}).to_parquet(tmp_path / "t.parquet")
    captioned = open_source(str(tmp_path / "t.parquet"), CAPTIONS)
    assert (captioned.captions, captioned.pictures.read_content(2)) == ([("a",), ("b",), ("c",)], picture(2))


def test_an_image_folder_of_the_hub_has_its_captions_in_a_table(tmp_path: Path, picture: Callable[..., bytes]) -> None:
    (tmp_path / "set" / "train").mkdir(parents=True)
    for name in ("1.png", "2.png"):
        (tmp_path / "set" / "train" / name).write_bytes(picture(len(name)))
    (tmp_path / "set" / "train" / "metadata.jsonl").write_text(
        '{"file_name": "1.png", "text": "a"}\n{"file_name": "2.png", "text": "b"}\n'
    )
    captioned = open_source(f"hf:{tmp_path / 'set'}", CAPTIONS)
    assert captioned.captions == [("a",), ("b",)]
    assert captioned.pictures.get_name(1) == str(tmp_path / "set" / "train" / "2.png")
