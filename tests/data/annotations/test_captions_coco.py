import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitkit.data.annotations.captions import CAPTIONS, Captioned
from vitkit.data.sources.open import open_source

Put = Callable[..., None]

COCO = {
    "info": {},
    "images": [{"id": 9, "file_name": "a.png"}, {"id": 4, "file_name": "b.png"}],
    "annotations": [
        {"id": 1, "image_id": 4, "caption": "a bee "},
        {"id": 2, "image_id": 9, "caption": "an ant"},
        {"id": 3, "image_id": 4, "caption": "two bees\n"},
    ],
}


def image(name: str, split: str, *captions: str, **more: str) -> dict[str, Any]:
    return {
        "filename": name,
        "split": split,
        "sentences": [{"raw": raw, "tokens": raw.split()} for raw in captions],
    } | more


SPLITS = {
    "images": [
        image("a.png", "test", "a1", "a2", filepath="val2014"),
        image("b.png", "restval", "b1", filepath="val2014"),
        image("c.png", "train", "c1", "c2", filepath="train2014"),
        image("d.png", "val", "d1", filepath="val2014"),
    ],
    "dataset": "coco",
}


@pytest.fixture
def put(tmp_path: Path, picture: Callable[..., bytes]) -> Put:
    def put(*names: str) -> None:
        for seed, name in enumerate(names):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(picture(seed))

    return put


def write_json(path: Path, content: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return str(path)


def names(captioned: Captioned, root: Path) -> list[str]:
    return [captioned.pictures.get_name(index).removeprefix(f"{root}/") for index in range(len(captioned.pictures))]


@pytest.mark.parametrize("folder", ["annotations", "images", "val2017", "annotations/images", "annotations/val2017"])
def test_coco_images_are_found_in_the_usual_folders(folder: str, put: Put, tmp_path: Path) -> None:
    put(f"{folder}/a.png", f"{folder}/b.png")
    captioned = open_source(write_json(tmp_path / "annotations" / "captions_val2017.json", COCO), CAPTIONS)
    assert names(captioned, tmp_path) == [f"{folder}/a.png", f"{folder}/b.png"]
    assert captioned.captions == [("an ant",), ("a bee", "two bees")]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("@test", {"val2014/a.png": ("a1", "a2")}),
        ("@val", {"val2014/d.png": ("d1",)}),
        ("@restval", {"val2014/b.png": ("b1",)}),
        ("@train", {"val2014/b.png": ("b1",), "train2014/c.png": ("c1", "c2")}),
        ("", {"val2014/a.png": ("a1", "a2"), "val2014/b.png": ("b1",), "train2014/c.png": ("c1", "c2"),
              "val2014/d.png": ("d1",)}),
    ],
)  # fmt: skip
def test_karpathys_splits(split: str, expected: dict[str, tuple[str, ...]], put: Put, tmp_path: Path) -> None:
    put("val2014/a.png", "val2014/b.png", "train2014/c.png", "val2014/d.png")
    captioned = open_source(write_json(tmp_path / "dataset_coco.json", SPLITS) + split, CAPTIONS)
    assert dict(zip(names(captioned, tmp_path), captioned.captions, strict=True)) == expected


def test_flickr_images_are_in_one_folder(put: Put, tmp_path: Path) -> None:
    put("flickr8k/1.png", "flickr8k/2.png")
    content = {"images": [image("1.png", "train", "a"), image("2.png", "test", "b")], "dataset": "flickr8k"}
    assert names(
        open_source(write_json(tmp_path / "dataset_flickr8k.json", content) + "@test", CAPTIONS), tmp_path
    ) == ["flickr8k/2.png"]


def test_file_name_with_at_sign_is_no_split(put: Put, tmp_path: Path) -> None:
    put("a.png", "b.png")
    assert len(open_source(write_json(tmp_path / "x.json@2.json", COCO), CAPTIONS).captions) == 2
    with pytest.raises(
        ValueError, match=r"^a split must be one of Karpathy's, got COCO's own captions; source=.*@test$"
    ):
        open_source(write_json(tmp_path / "x.json@2.json", COCO) + "@test", CAPTIONS)


def test_unknown_split_is_refused(put: Put, tmp_path: Path) -> None:
    put("val2014/a.png")
    path = write_json(tmp_path / "dataset_coco.json", SPLITS)
    with pytest.raises(ValueError) as error:
        open_source(f"{path}@tset", CAPTIONS)
    assert str(error.value) == (
        f"split must be one of test, restval, train, val, got split=tset; did you mean test?; source={path}@tset"
    )


def test_all_faults_of_coco_are_one_line(put: Put, tmp_path: Path) -> None:
    put("a.png")
    images = [*COCO["images"], {"id": 5}, {"id": 7, "file_name": "c.png"}, {"id": 9, "file_name": "a.png"}]
    annotations = [
        *COCO["annotations"],
        {"image_id": 1, "caption": "x"},
        {"image_id": 4},
        {"image_id": 7, "caption": ""},
    ]
    path = write_json(tmp_path / "captions.json", {"images": images, "annotations": annotations})
    with pytest.raises(ValueError) as error:
        open_source(path, CAPTIONS)
    assert str(error.value) == (
        "images must have id and file_name, annotations image_id and caption, got others in images[2], annotations[4]; "
        "every image must have an id of its own, got one again in images[4]; "
        "every caption must be of an image, got an unknown image_id in annotations[3]; "
        f"pictures must exist, got 1 of 2 that do not: {tmp_path}/b.png; "
        f"left out: 1 sample without a caption, such as images[3]; source={path}"
    )


def test_missing_images_name_the_folders_searched(tmp_path: Path) -> None:
    path = write_json(tmp_path / "up" / "captions_val2017.json", COCO)
    with pytest.raises(ValueError) as error:
        open_source(path, CAPTIONS)
    up = f"{tmp_path}/up"
    assert str(error.value) == (
        f"pictures must lie in one of {up}, {up}/images, {up}/val2017, "
        f"{tmp_path}, {tmp_path}/images, {tmp_path}/val2017; "
        f"pictures must exist, got 2 of 2 that do not: {up}/a.png, {up}/b.png; source={path}"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "captions must be JSON, got Expecting property name"),
        ("[]", "captions must be JSON with images, and annotations or sentences; source="),
        ('{"images": [{"filename": 3}]}', r"images must have filename, split and sentences, got others in images\[0\]"),
        ('{"images": [{"filename": "a.png", "split": "x", "sentences": [{"raw": 1}]}]}',
         r"captions must be text, or lists of it, got others in images\[0\] \(1\); source="),
        ('{"images": [], "annotations": []}', "a table must have rows, got none; source="),
    ],
)  # fmt: skip
def test_other_json_is_refused(content: str, message: str, put: Put, tmp_path: Path) -> None:
    put("a.png")
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(ValueError, match=f"^{message}"):
        open_source(str(tmp_path / "t.json"), CAPTIONS)
