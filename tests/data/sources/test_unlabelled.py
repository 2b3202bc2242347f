import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from vitkit.data.images import Images
from vitkit.data.order import Balanced
from vitkit.data.pictures import Augmentation
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source, open_unlabelled


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    for number, name in enumerate(["b.png", "a/1.png", "a/deep/2.JPG", "c/3.png", "d.png", "e.png"]):
        path = tmp_path / "loose" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (5, 6), np.uint8)).save(path)
    return tmp_path / "loose"


def test_any_folder_holds_pictures_without_labels(loose: Path) -> None:
    source = open_unlabelled(str(loose))
    names = [source.get_name(index).removeprefix(f"{loose}/") for index in range(len(source))]
    assert names == ["b.png", "d.png", "e.png", "a/1.png", "a/deep/2.JPG", "c/3.png"]
    assert (source.class_names, source.labels, source.multilabel) == ((), [-1] * 6, False)
    assert open_unlabelled(str(loose / "a")).labels == [-1, -1]
    assert open_unlabelled(str(loose / "b.png")).read_image(0).size == (6, 5)


def test_labels_of_other_sources_are_dropped(loose: Path) -> None:
    (loose / "list.csv").write_text("file_name,label\nb.png,x\nd.png,y\n")
    source = open_unlabelled(str(loose / "list.csv"))
    assert (len(source), source.class_names, source.labels) == (2, (), [-1, -1])
    digits = open_unlabelled("digits")
    assert (len(digits), set(digits.labels), digits.class_names) == (1797, {-1}, ())
    assert open_source("digits").class_names


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere.png", "a picture that exists, got source=nowhere.png"), ("digist", "did you mean digits?")],
)
def test_missing_image_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match="source must be ") as error:
        open_unlabelled(name)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source must hold pictures"):
        open_unlabelled(str(tmp_path))


def test_pictures_without_labels_are_split_and_batched(loose: Path) -> None:
    def data(**options: Any) -> Images:
        return Images(
            str(loose), preprocess=Preprocess((4, 6), (0.5,), (0.5,)), folds=3, batch=3, unlabelled=True, **options
        )

    held = [sample for fold in range(3) for sample in data(fold=fold).validation]
    assert sorted(held) == list(range(6)) and all(len(data(fold=fold).validation) == 2 for fold in range(3))
    one = data()
    assert (one.class_names, one.num_classes, one.one_label) == ((), 0, False)
    batches = [*one.train_dataloader(), *one.val_dataloader()]
    assert sorted(index for batch in batches for index in batch.indices.tolist()) == list(range(6))
    assert all(batch.labels.tolist() == [-1] * len(batch.images) for batch in batches)
    both = data(val=str(loose / "a"))
    assert (len(both.training), len(both.validation), both.held_out.labels) == (6, 2, [-1, -1])
    with pytest.raises(ValueError, match="draw must not be Balanced where data.unlabelled"):
        data(draw=Balanced())


def test_unaugmented_loader_reads_as_validation_does() -> None:
    plain = Images("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), batch=4)
    varied = Images(
        "digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), augment=Augmentation([v2.RandomInvert(1.0)]), batch=4
    )
    one, two = (next(iter(data.make_unaugmented_loader([5, 3, 9]))) for data in (plain, varied))
    assert one.indices.tolist() == [5, 3, 9]
    assert one.images.equal(two.images)


def test_annotations_of_any_kind_may_be_missing_or_wrong(
    loose: Path, tmp_path: Path, shard: Callable[..., Path]
) -> None:
    """Captions, several rows of an image, cells that can be no label, shards and JSON of COCO without any."""
    content = (loose / "b.png").read_bytes()
    (loose / "pairs.csv").write_text("file_name,text\nb.png,x\nd.png,y\n./b.png,z\n")
    (loose / "odd.jsonl").write_text('{"file_name": "b.png", "label": 0.5}\n{"file_name": "d.png"}\n')
    images = [{"id": 1, "file_name": "b.png"}, {"id": 2, "file_name": "d.png"}]
    (loose / "coco.json").write_text(json.dumps({"images": images, "annotations": []}))
    for name in ("pairs.csv", "odd.jsonl", "coco.json"):
        source = open_unlabelled(str(loose / name))
        assert [Path(source.get_name(index)).name for index in range(len(source))] == ["b.png", "d.png"]
        assert (source.class_names, source.labels, source.read_content(0)) == ((), [-1, -1], content)
    path = shard(tmp_path / "0.tar", [("1.png", content), ("2.png", content), ("2.txt", "x")])
    assert open_unlabelled(str(path)).labels == [-1, -1]


def test_a_data_set_without_labels_opens(tmp_path: Path, loose: Path, unpacked: None) -> None:
    datasets = pytest.importorskip("datasets")
    content = (loose / "b.png").read_bytes()
    pictures = [{"bytes": content, "path": None}] * 2
    features = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict({"image": pictures}, features=features).save_to_disk(tmp_path / "set")
    source = open_unlabelled(f"hf:{tmp_path / 'set'}")
    assert (source.labels, source.read_content(1)) == ([-1, -1], content)
