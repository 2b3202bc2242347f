from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.data.preprocess import Preprocess
from vitkit.evaluation import figures
from vitkit.evaluation.metrics import BINS, Bins
from vitkit.inference import reconstruction_sheets as sheets
from vitkit.models import MAE
from vitkit.nn import Encoder
from vitkit.support import contact_sheet


def test_size_of_a_large_confusion_matrix_is_bounded(tmp_path: Path) -> None:
    names = [f"class {index}" for index in range(300)]
    figures.draw_confusion(torch.eye(300, dtype=torch.int64), names, tmp_path / "many.png")
    with Image.open(tmp_path / "many.png") as image:
        assert max(image.size) <= figures.LARGEST * figures.DPI


def test_class_names_are_plain_text_in_any_script(tmp_path: Path) -> None:
    figures.draw_confusion(torch.eye(3, dtype=torch.int64), ["a $b", "漢字", "_^"], tmp_path / "odd.png")
    lines = ("漢字 → $x_1$ 50%", "very/long/" * 20 + "name.png")
    contact_sheet.save_contact_sheet([contact_sheet.Tile(Image.new("L", (3, 3)), lines)], tmp_path / "sheet.png")
    assert {path.name for path in tmp_path.iterdir()} == {"odd.png", "sheet.png"}


def test_reliability_diagram_allows_empty_bins(tmp_path: Path) -> None:
    count = torch.zeros(BINS, dtype=torch.int64)
    count[-1] = 9
    figures.draw_calibration(Bins(count, count / 9.5, count / 10), 0.05, tmp_path / "calibration.png")
    with Image.open(tmp_path / "calibration.png") as image:
        image.verify()


def test_contact_sheet_shows_whole_images_in_order(tmp_path: Path) -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    sizes = [(8, 8), (300, 100), (50, 200)]
    pictures = [Image.new("RGB", size, colour) for size, colour in zip(sizes, colours, strict=True)]
    tiles = [contact_sheet.Tile(picture, ("one",)) for picture in pictures]
    contact_sheet.save_contact_sheet(tiles, tmp_path / "sheet.png", columns=2)
    with Image.open(tmp_path / "sheet.png") as image:
        sheet = np.asarray(image)
    step = contact_sheet.TILE + contact_sheet.GAP, contact_sheet.TILE + contact_sheet.TEXT + contact_sheet.GAP
    assert sheet.shape == (2 * step[1] + contact_sheet.GAP, 2 * step[0] + contact_sheet.GAP, 3)
    for place, ((width, height), colour) in enumerate(zip(sizes, colours, strict=True)):
        left, top = contact_sheet.GAP + place % 2 * step[0], contact_sheet.GAP + place // 2 * step[1]
        tile = sheet[top : top + contact_sheet.TILE, left : left + contact_sheet.TILE]
        share = (tile == colour).all(axis=2).mean()
        assert abs(share - min(width, height) / max(width, height)) < 0.02
        assert tuple(tile[contact_sheet.TILE // 2, contact_sheet.TILE // 2]) == colour


def test_long_line_is_shortened_in_the_middle() -> None:
    letters = contact_sheet.load_font()
    short = contact_sheet.shorten_line("a dog in " + "folder/" * 30 + "name.png", letters)
    assert short.startswith("a dog in ") and "…" in short and short.endswith("name.png")
    assert letters.getlength(short) <= contact_sheet.TILE
    assert contact_sheet.shorten_line("name.png", letters) == "name.png"


def mae(channels: int, ratio: float = 0.5) -> MAE:
    model = MAE(Encoder(16, 1, 2), Encoder(16, 1, 2), (16, 24), (8, 8), channels=channels, ratio=ratio)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_sheet_hides_what_the_noise_says_and_keeps_what_was_visible(channels: int) -> None:
    model, preprocess = mae(channels), Preprocess((16, 24), (0.4,) * channels, (0.2,) * channels)
    pixels = torch.randint(0, 120, (2, channels, 16, 24), dtype=torch.uint8)  # none is the grey of a hidden patch
    noise = torch.tensor([[[0, 1, 2], [3, 4, 5]], [[5, 4, 3], [2, 1, 0]]]).float()
    images = preprocess.normalise(pixels)
    sheet = np.asarray(sheets.draw_reconstructions(model, preprocess, images, noise))
    times, top = 5, sheets.LINE + contact_sheet.GAP  # 24 pixels become 120
    step = 24 * times + contact_sheet.GAP, 16 * times + contact_sheet.GAP
    tiles = [
        [
            sheet[top + row * step[1] :, contact_sheet.GAP + column * step[0] :][: 16 * times, : 24 * times]
            for column in range(4)
        ]
        for row in range(2)
    ]
    caption = 2 * sheets.LINE
    assert sheet.shape == (top + 2 * step[1] + caption, contact_sheet.GAP + 4 * step[0], 3)
    hidden = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]]).view(2, 2, 3).bool()
    mask = hidden.repeat_interleave(8, 1).repeat_interleave(8, 2)[..., None].expand(-1, -1, -1, 3).numpy()
    with torch.no_grad():
        output = model(images, noise)
        means = preprocess.denormalise(model.fill_means(images, output.hidden))
        completed = preprocess.denormalise(model.fill_hidden(images, output))
    for row, (original, visible, baseline, reconstruction) in enumerate(tiles):
        whole = pixels[row].expand(3, -1, -1).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(original, whole.repeat(times, 0).repeat(times, 1))
        np.testing.assert_array_equal(visible[::times, ::times], np.where(mask[row], sheets.GREY, whole))
        for drawn, pixels_drawn in ((baseline, means), (reconstruction, completed)):
            small = drawn[::times, ::times]
            np.testing.assert_array_equal(small, pixels_drawn[row].expand(3, -1, -1).permute(1, 2, 0).numpy())
            np.testing.assert_array_equal(small[~mask[row]], whole[~mask[row]])
            assert (small[mask[row]] != whole[mask[row]]).mean() > 0.5


@pytest.mark.parametrize("norm_pix", [False, True])
def test_a_drawing_of_a_constant_model_shows_nothing_of_the_hidden_patches(norm_pix: bool) -> None:
    """It showed a digit: the mean and the contrast of each hidden patch."""
    model, preprocess = mae(1), Preprocess((16, 24), (0.4,), (0.2,))
    model.norm_pix = norm_pix
    torch.nn.init.zeros_(model.decoder.pixels.weight)
    noise = torch.tensor([[[0, 1, 2], [3, 4, 5]]]).float()
    images = torch.rand(1, 1, 16, 24)
    changed = torch.cat([images[:, :, :8], torch.rand(1, 1, 8, 24)], dim=2)  # the lower patches are hidden
    drawings = [np.asarray(sheets.draw_reconstructions(model, preprocess, x, noise)) for x in (images, changed)]
    second = contact_sheet.GAP + 24 * 5 + contact_sheet.GAP  # column
    assert (drawings[0][:, :second] != drawings[1][:, :second]).any()
    np.testing.assert_array_equal(drawings[0][:, second:], drawings[1][:, second:])


@pytest.mark.parametrize("size", [(8, 8), (64, 8), (8, 200), (200, 300)])
def test_titles_fit_and_large_images_keep_their_size(size: tuple[int, int]) -> None:
    model = MAE(Encoder(16, 1, 2), Encoder(16, 1, 2), size, (4, 4), channels=1)
    noise = torch.rand(1, *model.embed.grid(*size))
    sheet = sheets.draw_reconstructions(model, Preprocess(size, (0.5,), (0.5,)), torch.zeros(1, 1, *size), noise)
    assert sheet.width >= 4 * max(sheets.MIN_SIDE, size[1]) and sheet.height >= size[0]
    lines, letters = sheets.describe_hidden(model), contact_sheet.load_font()
    assert all(contact_sheet.GAP + letters.getlength(line) <= sheet.width for line in lines)
    assert max(sheet.height - 3 * sheets.LINE, sheet.width // 4) >= sheets.MIN_SIDE


def test_loss_curve_skips_empty_cells(tmp_path: Path) -> None:
    rows = [{"step": str(step), "train/loss": str(1 / (1 + step)), "val/loss": ""} for step in range(5)]
    cases = {"train": rows, "both": [*rows, {"step": "4", "train/loss": "", "val/loss": "0.5"}], "none": []}
    for name, drawn in cases.items():
        figures.draw_loss_curve(drawn, tmp_path / f"{name}.png")
    assert len({(tmp_path / f"{name}.png").read_bytes() for name in cases}) == 3
