import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from vitkit.interpret.draw.summary_figures import draw_distances, draw_head_values, draw_position_similarity
from vitkit.interpret.measure.moments import Summary


def drawn(figure: Figure) -> list[str]:
    """All texts, after a check that nothing is cut."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())  # inches
    assert min(box.x0, box.y0) >= 0
    width, height = figure.get_size_inches()
    assert box.x1 <= width and box.y1 <= height
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible()]


@pytest.mark.parametrize("signed", [False, True])
def test_cells_hold_the_values_of_heads_from_the_first_layer_down(signed: bool) -> None:
    values = [torch.tensor([0.5, 2.0, 3.25]), torch.tensor([-1.0 if signed else 1.0, 0.0])]
    figure = draw_head_values(values, unit="distance", layers=["first", "$x_"], caption="a model")
    image = figure.axes[0].images[0]
    assert np.array_equal(image.get_array()[0], values[0].numpy())
    assert np.array_equal(image.get_array()[1][:2], values[1].numpy())
    assert np.ma.getmaskarray(image.get_array())[1, 2] or np.isnan(image.get_array()[1, 2])  # a head that is not there
    assert image.get_clim() == ((-3.25 if signed else 0), 3.25)
    assert image.origin == "upper"  # as tables and pages list layers
    if signed:
        assert image.to_rgba(-3.25)[0] > 0.3 > image.to_rgba(-3.25)[2]  # a loss is red
    said = drawn(figure)
    assert {"0.50", "2.00", "3.25", "0.00", "first", "$x_", "layer", "head"} <= {*said}
    assert "nan" not in said


@pytest.mark.parametrize(("largest", "text"), [(123.456, "123.5"), (0.0354, "0.035"), (2e-6, "0.0000")])
def test_small_values_have_significant_digits(largest: float, text: str) -> None:
    assert text in drawn(draw_head_values([torch.tensor([largest, 0])], unit="change"))


def test_many_cells_are_left_without_numbers() -> None:
    said = drawn(draw_head_values([torch.full((16,), 0.777)] * 24, unit="entropy"))
    assert "0.78" not in said


def test_points_are_means_and_lines_their_intervals() -> None:
    mean = torch.tensor([1.0, 4.0])
    summaries = [Summary(mean, mean / 4, mean - 0.5, mean + 0.5), Summary(2 * mean, mean, 2 * mean - 1, 2 * mean + 1)]
    figure = draw_distances(summaries, reference=("uniform attention", 7.2808), caption="100 photos")
    axes = figure.axes[0]
    assert [[*line.get_ydata()] for line in axes.lines] == [[1, 4], [2, 8], [2.5, 5], [7.2808, 7.2808]]
    ends = [[[*end] for end in segment[:, 1:]] for lines in axes.collections for segment in lines.get_segments()]
    assert ends == [[[0.5], [1.5]], [[3.5], [4.5]], [[1], [3]], [[7], [9]]]
    assert {"uniform attention", "layer", "mean attention distance in patches"} <= {*drawn(figure)}


def test_an_interval_of_one_picture_is_not_drawn() -> None:
    nothing = torch.full((1,), torch.nan)
    figure = draw_distances([Summary(torch.ones(1), nothing, nothing, nothing)])
    assert [len(lines.get_segments()) for lines in figure.axes[0].collections] == [0]
    drawn(figure)


@pytest.mark.parametrize("grid", [(2, 3), (1, 5), (16, 10)])
def test_each_position_has_its_map(grid: tuple[int, int]) -> None:
    rows, columns = grid
    similarity = torch.rand(*grid, *grid) * 2 - 1
    figure = draw_position_similarity(similarity, caption="a model")
    tiles = np.asarray(figure.axes[0].images[0].get_array().filled(np.nan))
    for row in range(rows):
        for column in range(columns):
            top, left = row * (rows + 1), column * (columns + 1)
            assert np.allclose(tiles[top : top + rows, left : left + columns], similarity[row, column].numpy())
    assert figure.axes[0].images[0].get_clim() == (-1, 1)
    assert tiles.shape == (rows * (rows + 1) - 1, columns * (columns + 1) - 1)
    drawn(figure)


@pytest.mark.parametrize("grid", [(16, 1), (1, 16), (2, 14)])
def test_maps_of_a_long_grid_are_wide_enough(grid: tuple[int, int]) -> None:
    figure = draw_position_similarity(torch.rand(*grid, *grid))
    drawn(figure)
    box = figure.axes[0].get_window_extent()
    assert min(box.width, box.height) > 0.4 * figure.dpi  # inches


def test_names_must_be_one_for_each_layer() -> None:
    with pytest.raises(ValueError, match="layers must have one name each, got 1 names for 2"):
        draw_head_values([torch.ones(2)] * 2, unit="x", layers=["a"])
