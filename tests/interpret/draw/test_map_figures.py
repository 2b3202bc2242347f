from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from vitkit.data.preprocess import Preprocess
from vitkit.interpret.draw.map_figures import (
    PhotoMap,
    arrange_panels,
    draw_gallery,
    draw_heads,
    draw_overlay,
    save_figure,
)
from vitkit.interpret.draw.panels import add_caption, make_scale
from vitkit.interpret.maps.geometry import Frame
from vitkit.interpret.maps.layout import Layout

PREPROCESS = Preprocess((24, 32), (0.5,) * 3, (0.25,) * 3, "bilinear", 0.875)
GRID = (3, 4)


def framed(size: tuple[int, int] = (320, 200)) -> tuple[Image.Image, Frame]:
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels), Frame.from_preprocess(PREPROCESS, size, Layout(("cls",), GRID, (8, 8)))


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def cut(figure: Figure) -> bool:
    """Whether anything reaches over the figure's edge."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())  # inches
    width, height = figure.get_size_inches()
    return min(box.x0, box.y0) < 0 or box.x1 > width or box.y1 > height


@pytest.mark.parametrize("size", [(320, 200), (200, 320), (301, 97)])
def test_patch_is_drawn_in_its_box_alone(size: tuple[int, int]) -> None:
    photo, frame = framed(size)
    one = torch.zeros(GRID)
    one[1, 2] = 0.25
    figure = draw_overlay(photo, frame, one)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn, axes = np.asarray(canvas.buffer_rgba())[..., :3].astype(int), figure.axes[2]
    yellow, purple = np.array([253, 231, 37]), np.array([68, 1, 84])  # the ends of viridis
    for row in range(3):
        for column in range(4):
            left, top, right, bottom = frame.get_patch_box(row, column)
            for x in (left + (right - left) * share for share in (0.2, 0.5, 0.8)):
                across, up = axes.transData.transform((x, (top + bottom) / 2))
                pixel = drawn[len(drawn) - 1 - round(up), round(across)]
                expected = yellow if (row, column) == (1, 2) else purple
                assert np.abs(pixel - expected).max() <= 2


def test_long_photo_is_limited_to_the_surroundings_of_the_crop() -> None:
    photo, frame = framed((4000, 10))
    left, _, right, _ = frame.box
    figure = draw_overlay(photo, frame, torch.ones(GRID))
    limits = figure.axes[0].get_xlim()
    assert limits == pytest.approx((left - 2 * (right - left), right + 2 * (right - left)))
    assert figure.axes[0].get_ylim() == (10, 0)
    pixels = figure.axes[0].images[0]
    assert pixels.get_array().shape[0] == 10  # as sharp as it was
    across, down = pixels.get_extent()[:2], pixels.get_extent()[2:]
    assert across[0] <= limits[0] < across[0] + 1 and across[1] - 1 < limits[1] <= across[1] and [*down] == [10, 0]


def test_colours_and_colour_bar_match_the_map() -> None:
    photo, frame = framed()
    map = torch.rand(GRID) / 12
    figure = draw_overlay(photo, frame, map, query=(2, 3), caption="a model, layer 3")
    on_photo, alone = figure.axes[1].images[-1], figure.axes[2].images[-1]
    for drawn in (on_photo, alone):
        assert np.allclose(drawn.get_array(), map.numpy())
        assert drawn.get_clim() == (0, pytest.approx(map.max().item()))
        left, top, right, bottom = frame.box
        assert drawn.get_extent() == [left, right, bottom, top]
    assert figure.axes[3].get_ylim() == alone.get_clim()
    left, top, right, bottom = frame.get_patch_box(2, 3)
    for axes in figure.axes[:3]:
        assert [patch.get_bbox().bounds for patch in axes.patches] == [
            pytest.approx((frame.box[0], frame.box[1], frame.box[2] - frame.box[0], frame.box[3] - frame.box[1])),
            pytest.approx((left, top, right - left, bottom - top)),
        ]
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 320), (200, 0))
    said = " ".join(text.get_text() for text in texts(figure))
    assert "a model, layer 3" in said
    assert "share of attention per patch, not rescaled" in said


def test_robust_scale_is_described() -> None:
    photo, frame = framed()
    map = torch.full(GRID, 0.01)
    map[0, 0] = 0.8
    figure = draw_overlay(photo, frame, map, robust=True)
    end = map.flatten().quantile(0.98).item()
    assert figure.axes[2].images[-1].get_clim() == (0, pytest.approx(end))
    said = " ".join(" ".join(text.get_text() for text in texts(figure)).split())
    assert f"colours end at the 98th percentile, {end:.3g}; the largest is 0.8" in said


def test_signed_scale_is_symmetric() -> None:
    scale = make_scale(torch.tensor([-0.5, 0.1, torch.nan]))
    assert (scale.colours, scale.low, scale.high) == ("RdBu_r", -0.5, 0.5)
    assert make_scale(torch.zeros(3))[1:3] == (0, 1)
    assert make_scale(torch.full((3,), torch.nan))[1:3] == (0, 1)


def test_all_heads_share_one_scale() -> None:
    photo, frame = framed()
    maps = torch.rand(6, *GRID)
    figure = draw_heads(photo, frame, maps, query=(0, 1))
    panels = figure.axes[:7]
    assert [axes.get_title() for axes in panels] == ["model's input", *(f"head {head}" for head in range(6))]
    for axes, map in zip(panels[1:], maps, strict=True):
        assert np.allclose(axes.images[-1].get_array(), map.numpy())
        assert axes.images[-1].get_clim() == (0, pytest.approx(maps.max().item()))
    for axes in panels:
        assert axes.patches[0].get_bbox().bounds[:2] == pytest.approx(frame.get_patch_box(0, 1)[:2])


@pytest.mark.parametrize("count", range(1, 26))
def test_panel_grid_has_few_empty_panels(count: int) -> None:
    rows, columns = arrange_panels(count)
    assert 0 <= rows * columns - count < columns <= 6


@pytest.mark.parametrize("size", [(320, 200), (1000, 60), (60, 1000)])
def test_nothing_is_cut(size: tuple[int, int]) -> None:
    photo, frame = framed(size)
    long = "runs/of/a/model/with/a/long/name/classify_digits/model, encoder.blocks.11.attn, mean of 12 heads, query cls"
    maps = torch.rand(3, *GRID)
    assert not cut(draw_overlay(photo, frame, maps[0], caption=f"{long}\n{long}, {long}", robust=True))
    assert not cut(draw_heads(photo, frame, maps, caption=long))
    assert not cut(draw_gallery([PhotoMap(photo, frame, map, "photo") for map in maps], caption=long))


@pytest.mark.parametrize("suffix, begin", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files_follow_their_suffix_and_are_reproducible(tmp_path: Path, suffix: str, begin: bytes) -> None:
    for name in ("a", "b"):
        add_caption(figure := Figure((3, 1)), r"$\frac{ & <b> 日本 $", "not rescaled")
        save_figure(figure, tmp_path / f"{name}.{suffix}")
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
    assert first.startswith(begin)
    assert first == second
    assert len([*tmp_path.iterdir()]) == 2


def test_invalid_figures_are_refused(tmp_path: Path) -> None:
    photo, frame = framed()
    with pytest.raises(ValueError, match="map must be of the grid"):
        draw_overlay(photo, frame, torch.zeros(4, 3))
    with pytest.raises(ValueError, match="photo must have the frame's size"):
        draw_overlay(photo.resize((100, 100)), frame, torch.zeros(GRID))
    with pytest.raises(ValueError, match="titles must be one for each of 2 heads, got 1"):
        draw_heads(photo, frame, torch.zeros(2, *GRID), titles=["a"])
    with pytest.raises(ValueError, match=r"path must end in .png, .svg, .pdf, got path=a.jpg"):
        save_figure(Figure(), "a.jpg")
    with pytest.raises(FileNotFoundError):
        save_figure(Figure(), tmp_path / "absent" / "a.png")


def test_each_photo_of_a_gallery_has_its_own_scale() -> None:
    photo, frame = framed()
    maps = torch.rand(2, *GRID) / torch.tensor([10, 100])[:, None, None]
    figure = draw_gallery([PhotoMap(photo, frame, map, f"$photo_{place}") for place, map in enumerate(maps)])
    above, below = figure.axes[0::2], figure.axes[1::2]
    assert [axes.get_title() for axes in above] == ["$photo_0", "$photo_1"]
    for axes, map in zip(below, maps, strict=True):
        assert np.allclose(axes.images[-1].get_array(), map.numpy())
        assert axes.images[-1].get_clim() == (0, pytest.approx(map.max().item()))
        assert axes.get_title() == f"0 to {map.max():.2g}"
