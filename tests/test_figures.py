from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitkit import figures
from vitkit.metrics import BINS, Bins


def test_a_confusion_matrix_of_many_classes_is_bounded(tmp_path: Path) -> None:
    names = [f"class {index}" for index in range(300)]
    figures.confusion(torch.eye(300, dtype=torch.int64), names, tmp_path / "many.png")
    with Image.open(tmp_path / "many.png") as image:
        assert max(image.size) <= figures.LARGEST * figures.DPI


def test_names_are_text_in_any_script(tmp_path: Path) -> None:
    figures.confusion(torch.eye(3, dtype=torch.int64), ["a $b", "漢字", "_^"], tmp_path / "odd.png")
    lines = ("漢字 → $x_1$ 50%", "very/long/" * 20 + "name.png")
    figures.contact_sheet([figures.Tile(Image.new("L", (3, 3)), lines)], tmp_path / "sheet.png")
    assert {path.name for path in tmp_path.iterdir()} == {"odd.png", "sheet.png"}


def test_a_reliability_diagram_may_have_empty_bins(tmp_path: Path) -> None:
    count = torch.zeros(BINS, dtype=torch.int64)
    count[-1] = 9
    figures.calibration(Bins(count, count / 9.5, count / 10), 0.05, tmp_path / "calibration.png")
    with Image.open(tmp_path / "calibration.png") as image:
        image.verify()


def test_a_contact_sheet_shows_each_picture_whole_in_order(tmp_path: Path) -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    sizes = [(8, 8), (300, 100), (50, 200)]
    pictures = [Image.new("RGB", size, colour) for size, colour in zip(sizes, colours, strict=True)]
    tiles = [figures.Tile(picture, ("one",)) for picture in pictures]
    figures.contact_sheet(tiles, tmp_path / "sheet.png", columns=2)
    with Image.open(tmp_path / "sheet.png") as image:
        sheet = np.asarray(image)
    step = figures.TILE + figures.GAP, figures.TILE + figures.TEXT + figures.GAP
    assert sheet.shape == (2 * step[1] + figures.GAP, 2 * step[0] + figures.GAP, 3)
    for place, ((width, height), colour) in enumerate(zip(sizes, colours, strict=True)):
        left, top = figures.GAP + place % 2 * step[0], figures.GAP + place // 2 * step[1]
        tile = sheet[top : top + figures.TILE, left : left + figures.TILE]
        share = (tile == colour).all(axis=2).mean()
        assert abs(share - min(width, height) / max(width, height)) < 0.02
        assert tuple(tile[figures.TILE // 2, figures.TILE // 2]) == colour


def test_a_long_line_keeps_its_end_and_fits() -> None:
    letters = figures.font()
    short = figures.shortened("folder/" * 30 + "name.png", letters)
    assert short.startswith("…") and short.endswith("name.png")
    assert letters.getlength(short) <= figures.TILE
    assert figures.shortened("name.png", letters) == "name.png"
