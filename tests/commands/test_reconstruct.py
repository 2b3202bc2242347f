from collections.abc import Iterable
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
from vitkit.inference.hidden_patches import ReconstructedImage, draw_noise, open_mae, reconstruct
from vitkit.inference.reconstruction_sheets import GREY, MIN_SIDE
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
    """Return five pictures. Two have the same stem, and two differ only by the case of a letter."""
    paths = [tmp_path / "pictures" / name for name in ("a.png", "a.jpg", "b.png", "more/A.png", "more/a-2.png")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(torch.randint(256, (20, 30, 3), dtype=torch.uint8).numpy()).save(path)
    return paths


def get_bytes(images: Iterable[ReconstructedImage]) -> list[bytes]:
    return [image.picture.tobytes() for image in images]


def run(*arguments: object) -> int:
    return main(["reconstruct", *map(str, arguments), "--device=cpu"])


def test_every_picture_gets_a_file_with_a_name_of_its_own(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(model, pictures[0].parent, "--out", out, "--batch", 2) == 0
    lines, error = capsys.readouterr()
    *files, _, caption, summary = lines.splitlines()
    assert caption == "Reconstruction: the model's patterns, with interpolated mean and contrast."
    assert error == ""
    assert sorted(path.name for path in out.iterdir()) == ["A-3.png", "a-2-2.png", "a-2.png", "a.png", "b.png"]
    assert {Path(line.split()[0]) for line in files} == {*out.iterdir()}
    errors = [float(line.split()[1]) for line in files]
    title, mean = summary.rsplit(maxsplit=1)
    assert title == "5 pictures, 75% hidden: squared error of normalised patches"
    assert float(mean) == pytest.approx(np.mean(errors), abs=2e-4)
    for path in out.iterdir():
        with Image.open(path) as picture:
            assert picture.width > 4 * MIN_SIDE and (np.asarray(picture) == GREY).all(2).mean() > 0.05


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_mask_depends_only_on_seed_and_position(model: Path, pictures: list[Path], batch: int) -> None:
    first = list(reconstruct(model, pictures, seed=3, batch=batch, device="cpu"))
    other = list(reconstruct(model, pictures, seed=4, batch=2, device="cpu"))
    again = list(reconstruct(model, pictures, seed=3, batch=3, workers=1, device="cpu"))
    assert [image.path for image in first] == pictures
    assert get_bytes(again) == get_bytes(first)
    assert_close([image.error for image in again], [image.error for image in first])
    assert all(left != right for left, right in zip(get_bytes(first), get_bytes(other), strict=True))
    twice = get_bytes(reconstruct(model, pictures[:1] * 2, device="cpu"))
    assert twice[0] != twice[1]


def test_unreadable_picture_does_not_change_the_masks_of_others(model: Path, pictures: list[Path]) -> None:
    before = list(reconstruct(model, pictures, device="cpu"))
    pictures[1].write_bytes(b"")
    errors: list[PictureError] = []
    after = list(reconstruct(model, pictures, batch=3, device="cpu", unreadable=errors.append))
    assert get_bytes(after) == get_bytes(before[index] for index in (0, 2, 3, 4))
    assert len(errors) == 1 and str(pictures[1]) in str(errors[0])


def test_error_is_the_loss_of_the_hidden_patches(model: Path, pictures: list[Path]) -> None:
    network = open_model(model).model
    assert isinstance(network, MAE)
    results = list(reconstruct(model, pictures[:1], ratio=0.5, masking=blockwise, device="cpu"))
    network.ratio, network.masking = 0.5, blockwise
    images = PREPROCESS(read_image(pictures[0]))[None]
    with torch.no_grad():
        expected = network(images, draw_noise(network, [derive_seed(0, 0)], PREPROCESS.size))
    assert expected.hidden.shape == (1, 12)
    loss = squared_error(expected.pixels, network.make_target(images, expected.hidden)).item()
    assert_close([result.error for result in results], [loss])


def test_open_bundle_is_not_changed(model: Path, pictures: list[Path]) -> None:
    bundle = open_model(model)
    network = require_masked_autoencoder(bundle.model)
    before = network.ratio, network.masking
    results, expected = (
        list(reconstruct(source, pictures, ratio=0.5, masking=blockwise, device="cpu")) for source in (bundle, model)
    )
    assert get_bytes(results) == get_bytes(expected)
    assert (network.ratio, network.masking) == before != (0.5, blockwise)


def test_options_replace_ratio_and_masking(
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
def test_invalid_option_is_a_one_line_error(
    options: list[str], message: str, model: Path, pictures: list[Path], tmp_path: Path, capsys: Any
) -> None:
    assert run(model, pictures[0], "--out", tmp_path / "out", *options) == 1
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not [*tmp_path.glob("out/*")]


def test_existing_output_is_refused(model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures[0].parent
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    for out, rule in ((folder, "new or empty folder"), (pictures[0], "folder"), (pictures[0] / "in", "folder")):
        assert run(model, folder, "--out", out) == 1
        assert f"out must be a {rule}, got out={out}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_unreadable_pictures_are_listed_at_the_end(
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


def test_classifier_is_refused(pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_file_names_are_distinct() -> None:
    taken: set[str] = set()
    stems = ("a", "a", "A", "a-2", "a-2-2", "b")
    assert [choose_png_name(stem, taken) for stem in stems] == [
        *("a.png", "a-2.png", "A-3.png", "a-2-2.png", "a-2-2-2.png", "b.png")
    ]


def test_reconstruct_takes_a_single_path(model: Path, pictures: list[Path]) -> None:
    assert [image.path for image in reconstruct(model, str(pictures[0]), device="cpu")] == [pictures[0]]


def test_no_folder_is_made_without_readable_pictures(model: Path, tmp_path: Path) -> None:
    (tmp_path / "no.png").write_text("no")
    assert run(model, tmp_path / "no.png", "--out", tmp_path / "out") == 1
    assert not (tmp_path / "out").exists()


def test_printed_ratio_is_the_share_of_hidden_patches(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, pictures[0], "--out", tmp_path / "out", "--ratio", 0.001) == 0
    assert "4% hidden" in capsys.readouterr().out  # 1 of 24
