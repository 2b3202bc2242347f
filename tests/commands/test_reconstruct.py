from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.data.order import derive_seed
from vitkit.data.preprocess import PictureError, Preprocess, read_image
from vitkit.inference.hidden_patches import noise, open_mae, reconstruct
from vitkit.inference.triptychs import GREY, SMALLEST
from vitkit.losses import squared_error
from vitkit.models import MAE, blockwise
from vitkit.models.parts import require_masked_autoencoder
from vitkit.support.files import choose_png_name


def encoder(dim: int) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": dim, "depth": 1, "heads": 2}}


CONFIG = {
    "class_path": "vitkit.models.MAE",
    "init_args": {
        "encoder": encoder(16),
        "decoder": encoder(8),
        "image_size": [16, 24],
        "patch_size": [4, 4],
        "channels": 1,
    },
}
PREPROCESS = Preprocess((16, 24), (0.5,), (0.25,))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(tmp_path / "model", Bundle(model_config.build_model(CONFIG), CONFIG, PREPROCESS))
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Five pictures, two of which have the same stem, and two differ by the case of a letter."""
    paths = [tmp_path / "pictures" / name for name in ("a.png", "a.jpg", "b.png", "more/A.png", "more/a-2.png")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(torch.randint(256, (20, 30, 3), dtype=torch.uint8).numpy()).save(path)
    return paths


def run(*arguments: object) -> int:
    return main(["reconstruct", *map(str, arguments), "--device=cpu"])


def test_a_picture_for_each_and_none_takes_the_name_of_another(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(model, pictures[0].parent, "--out", out, "--batch", 2) == 0
    lines, error = capsys.readouterr()
    *files, summary = lines.splitlines()
    assert error == ""
    assert sorted(path.name for path in out.iterdir()) == ["A-3.png", "a-2-2.png", "a-2.png", "a.png", "b.png"]
    assert {Path(line.split()[0]) for line in files} == {*out.iterdir()}
    errors = [float(line.split()[1]) for line in files]
    said, mean = summary.rsplit(maxsplit=1)
    assert said == "5 pictures, 75% hidden: squared error of normalised patches"
    assert float(mean) == pytest.approx(np.mean(errors), abs=2e-4)
    for path in out.iterdir():
        with Image.open(path) as picture:
            assert picture.width > 3 * SMALLEST and (np.asarray(picture) == GREY).all(2).mean() > 0.1


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_a_mask_depends_on_the_seed_and_the_place_alone(model: Path, pictures: list[Path], batch: int) -> None:
    whole, *others = (
        list(reconstruct(model, pictures, seed=seed, batch=size, device="cpu")) for seed, size in ((3, batch), (4, 2))
    )
    again = list(reconstruct(model, pictures, seed=3, batch=3, workers=1, device="cpu"))
    assert [one.path for one in whole] == pictures
    assert [one.picture.tobytes() for one in again] == [one.picture.tobytes() for one in whole]
    assert_close([one.error for one in again], [one.error for one in whole])
    assert all(one.picture.tobytes() != two.picture.tobytes() for one, two in zip(whole, others[0], strict=True))
    twice = [one.picture.tobytes() for one in reconstruct(model, pictures[:1] * 2, device="cpu")]
    assert twice[0] != twice[1]


def test_an_unreadable_picture_does_not_move_the_masks_of_others(model: Path, pictures: list[Path]) -> None:
    before = list(reconstruct(model, pictures, device="cpu"))
    pictures[1].write_bytes(b"")
    errors: list[PictureError] = []
    after = list(reconstruct(model, pictures, batch=3, device="cpu", unreadable=errors.append))
    assert [one.picture.tobytes() for one in after] == [before[place].picture.tobytes() for place in (0, 2, 3, 4)]
    assert len(errors) == 1 and str(pictures[1]) in str(errors[0])


def test_the_error_is_the_loss_of_the_hidden_patches(model: Path, pictures: list[Path]) -> None:
    network = open_model(model).model
    assert isinstance(network, MAE)
    found = list(reconstruct(model, pictures[:1], ratio=0.5, masking=blockwise, device="cpu"))
    network.ratio, network.masking = 0.5, blockwise
    images = PREPROCESS(read_image(pictures[0]))[None]
    with torch.no_grad():
        expected = network(images, noise(network, [derive_seed(0, 0)], PREPROCESS.size))
    assert expected.hidden.shape == (1, 12)
    loss = squared_error(expected.pixels, network.make_target(images, expected.hidden)).item()
    assert_close([one.error for one in found], [loss])


def test_an_open_mae_is_taken_and_stays_as_it_was(model: Path, pictures: list[Path]) -> None:
    bundle = open_model(model)
    network = require_masked_autoencoder(bundle.model)
    before = network.ratio, network.masking
    found, expected = (
        list(reconstruct(source, pictures, ratio=0.5, masking=blockwise, device="cpu")) for source in (bundle, model)
    )
    assert [one.picture.tobytes() for one in found] == [one.picture.tobytes() for one in expected]
    assert (network.ratio, network.masking) == before != (0.5, blockwise)


def test_ratio_and_masking_may_be_others_than_trained(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, pictures[2], "--out", tmp_path / "few", "--ratio", 0.25, "--masking", "blockwise") == 0
    assert "1 picture, 25% hidden" in capsys.readouterr().out
    assert open_mae(model, masking=blockwise).model.masking is blockwise


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ratio", "1.5"], "ratio must be above 0 and below 1, got ratio=1.5"),
        (["--ratio", "nan"], "ratio must be above 0 and below 1, got ratio=nan"),
        (["--ratio", "0.99"], "ratio must leave some of 24 patches visible and hide some, got ratio=0.99"),
        (["--batch", "0"], "batch must be at least 1 and workers at least 0, got batch=0, workers=0"),
    ],
)
def test_a_wrong_option_is_one_line(
    options: list[str], message: str, model: Path, pictures: list[Path], tmp_path: Path, capsys: Any
) -> None:
    assert run(model, pictures[0], "--out", tmp_path / "out", *options) == 1
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not [*tmp_path.glob("out/*")]


def test_nothing_is_overwritten(model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures[0].parent
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    for out in (folder, pictures[0], folder / "not" / "there"):
        assert run(model, folder, "--out", out) == 1
        assert f"out must be new or empty, in a folder that exists, got out={out}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_what_cannot_be_read_is_listed_at_the_end(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in pictures[:2]:
        path.write_bytes(b"")
    assert run(model, *pictures, "--out", tmp_path / "out", "--batch", 2) == 1
    out, error = capsys.readouterr()
    assert out.splitlines()[-1].startswith("3 pictures")
    lines = error.splitlines()
    assert [str(path) in line for path, line in zip(pictures, lines, strict=False)] == [True, True, False]
    assert lines[2:] == ["error: 2 of 5 pictures could not be read"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["A.png", "a-2.png", "b.png"]


def test_a_classifier_reconstructs_nothing(
    pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"encoder": encoder(16), "image_size": [16, 24], "patch_size": [4, 4], "channels": 1, "outputs": 2}
    config = {"class_path": "vitkit.models.ViT", "init_args": arguments}
    save(tmp_path / "vit", Bundle(model_config.build_model(config), config, PREPROCESS, ("a", "b")))
    assert run(tmp_path / "vit", pictures[0], "--out", tmp_path / "out") == 1
    assert capsys.readouterr().err == f"error: model must be an MAE to reconstruct, got ViT in {tmp_path / 'vit'}\n"
    assert not (tmp_path / "out").exists()


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reconstruct", "--help"])
    assert "example: vitkit reconstruct runs/" in capsys.readouterr().out


def test_names_are_taken_once() -> None:
    taken: set[str] = set()
    stems = ("a", "a", "A", "a-2", "a-2-2", "b")
    assert [choose_png_name(stem, taken) for stem in stems] == [
        *("a.png", "a-2.png", "A-3.png", "a-2-2.png", "a-2-2-2.png", "b.png")
    ]


def test_one_path_is_one_picture(model: Path, pictures: list[Path]) -> None:
    assert [found.path for found in reconstruct(model, str(pictures[0]), device="cpu")] == [pictures[0]]


def test_no_folder_is_left_where_nothing_could_be_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "no.png").write_text("no")
    assert run(model, tmp_path / "no.png", "--out", tmp_path / "out") == 1
    assert not (tmp_path / "out").exists()


def test_the_share_that_is_told_is_the_share_that_is_hidden(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, pictures[0], "--out", tmp_path / "out", "--ratio", 0.001) == 0
    assert "4% hidden" in capsys.readouterr().out  # 1 of 24
