from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from vitkit import configs, weights
from vitkit.cli import main
from vitkit.predict import predict
from vitkit.preprocess import PictureError, Preprocess, read

CLASSES = ("dark", "middling", "bright")
CONFIG = {
    "class_path": "vitkit.models.ViT",
    "init_args": {
        "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}},
        "image_size": [8, 12],
        "patch_size": [4, 4],
        "channels": 1,
        "outputs": 3,
    },
}
PREPROCESS = Preprocess((8, 12), (0.5,), (0.25,))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = configs.build(CONFIG)
    nn.init.normal_(network.get_parameter("head.weight"))
    weights.save(tmp_path / "model", network, CONFIG, PREPROCESS, CLASSES)
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Five grey and coloured pictures of several sizes, one of them in a folder below."""
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    paths = [folder / name for name in ("a.png", "b.jpg", "c.png", "d.png", "more/e.png")]
    for index, path in enumerate(paths):
        pixels = torch.randint(256, (10 + index, 14, 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).convert("RGB" if index % 2 else "L").save(path)
    return paths


def run(arguments: Sequence[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], list[str]]:
    status = main(["predict", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out.splitlines(), err.splitlines()


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_predictions_are_the_model_s_own_in_the_order_of_the_paths(
    model: Path, pictures: list[Path], batch: int
) -> None:
    network = weights.open_model(model).model
    found = list(predict(model, pictures, top=3, batch=batch, device="cpu"))
    assert [prediction.path for prediction in found] == pictures
    for path, labels, probabilities in found:
        expected = network(PREPROCESS(read(path))[None]).softmax(dim=1)[0]
        assert sorted(labels) == sorted(CLASSES)
        torch.testing.assert_close(torch.tensor(probabilities), expected.sort(descending=True).values)
        torch.testing.assert_close(torch.tensor(probabilities), expected[[CLASSES.index(label) for label in labels]])


def test_a_line_per_picture_aligned_and_a_folder_stands_for_its_pictures(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, errors = run([model, pictures[0].parent, "--top", 2], capsys)
    assert (status, errors) == (0, [])
    assert [line.split()[0] for line in lines] == [str(path) for path in pictures]
    assert {len(line.split()) for line in lines} == {1 + 2 * 2}
    wide = len(str(pictures[-1]))
    assert all(line[wide : wide + 2] == "  " and line[wide + 2] != " " for line in lines)


def test_the_readable_pictures_are_predicted_and_the_others_named(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    broken, absent = pictures[1], pictures[0].with_name("absent.png")
    broken.write_bytes(broken.read_bytes()[:200])
    status, lines, errors = run([model, pictures[0], broken, absent, pictures[2]], capsys)
    assert status == 1
    assert [line.split()[0] for line in lines] == [str(pictures[0]), str(pictures[2])]
    assert [str(broken) in errors[0], str(absent) in errors[1]] == [True, True]
    assert errors[2:] == ["error: 2 of 4 pictures could not be read"]


def test_from_python_an_unreadable_picture_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="absent.png"):
        list(predict(model, [tmp_path / "absent.png"]))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--top", "0"], "top and batch must be at least 1, got top=0"),
        (["--device", "abacus"], "device must be one that this machine has, got device=abacus"),
    ],
)
def test_a_wrong_option_is_one_line(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    status, lines, errors = run([model, pictures[0], *options], capsys)
    assert (status, lines, len(errors)) == (1, [], 1)
    assert says in errors[0]


def test_an_empty_folder_and_a_class_too_many_are_one_line(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert run([model, tmp_path / "empty"], capsys)[2] == [
        f"error: a folder of images must hold pictures, got none in {tmp_path / 'empty'}"
    ]
    (model / "classes.json").write_text('["dark", "bright"]')
    assert run([model, pictures[0]], capsys)[2] == ["error: model must give a number per class, got 3 for 2 classes"]
